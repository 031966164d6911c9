"""Means with 95 % intervals, overall and per link, ranked by power; as JSON and as a table.

``to_json`` gives, with keys that stay::

    {"format": "distrlcc-summary", "version": 1,
     "confidence": 0.95, "links": L, "seeds": S,
     "metrics": {metric: {"unit", "better", "definition"}},
     "ranking": [scheme, ...],                       best power first; none without a run
     "common_scenarios": N,                          over which "overall" is; 0: each scheme's own
     "left_out_scenarios": [{"scenario": link, "schemes": [scheme, ...]}, ...],
     "without_runs": [scheme, ...],
     "schemes": {scheme: {
         "learned": bool, "failed_runs": N,
         "overall": {metric: {"mean", "low", "high"}},
         "scenarios": {link: {metric: {"mean", "low", "high"}}}}}}

Metrics are the keys of :data:`distrlcc.evaluate.scores.METRICS`, and of ``SENDER_METRICS`` where
real packets were sent; ``better`` is null where neither way is. Shares are 0 to 1; what is
undefined (a delay where nothing was delivered, what our senders sent again, the interval of a
single value) is null.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distrlcc.evaluate.bootstrap import CONFIDENCE, link_intervals, mean_intervals
from distrlcc.evaluate.common_links import CommonLinks, common_links
from distrlcc.evaluate.scores import METRICS, SENDER_METRICS, Metric, SchemeScores, metric

TABLE_METRICS: dict[str, str] = {
    "power": "power",
    "throughput_mbps": "Mbit/s",
    "utilisation": "util. %",
    "first_second_utilisation": "first second %",
    "mean_queueing_delay_ms": "queue mean ms",
    "p95_queueing_delay_ms": "queue p95 ms",
    "queueing_delay_rtt": "queue mean RTT",
    "loss": "loss %",
    "excess_loss": "excess loss %",
}
"""The ranked table's metrics, and their heads where room is scarce."""

_WIDE = 130
"""Columns of a terminal from which on an interval stands beside its mean and not below."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its bootstrap interval, whose bounds are NaN where there is none."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval, for a ± sign; NaN where there is none."""
        return (self.high - self.low) / 2

    def texts(self, metric: Metric) -> tuple[str, str]:
        """Return the mean and the half width as shown: ``("95.1", "0.3")``, a dash, or no width."""
        if not math.isfinite(self.mean):
            return "-", ""
        digits, scale = metric.digits, metric.scale
        half = f"{self.half_width * scale:.{digits}f}" if math.isfinite(self.half_width) else ""
        return f"{self.mean * scale:.{digits}f}", half

    def to_json(self) -> dict[str, float | None]:
        """Return a dict of six significant digits whose undefined values are None."""
        values = {"mean": self.mean, "low": self.low, "high": self.high}
        return {
            key: float(f"{value:.6g}") if math.isfinite(value) else None
            for key, value in values.items()
        }


@dataclass(frozen=True, slots=True)
class SchemeSummary:
    """One scheme's means."""

    scheme: str
    learned: bool
    overall: dict[str, Interval]
    """By metric; over the links that are common to all schemes."""
    scenarios: dict[str, dict[str, Interval]]
    """By link, then by metric."""
    failed: int = 0
    """Runs that failed, which are left out of the means."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All schemes' means, best power first, those without a run last."""

    schemes: tuple[SchemeSummary, ...]
    links: tuple[str, ...]
    """Names of the L links, each once."""
    seeds: int
    """Runs of each link."""
    common: CommonLinks
    """Those that the overall means are over."""
    metrics: tuple[Metric, ...] = METRICS
    """What was measured."""

    @property
    def has_intervals(self) -> bool:
        """Whether the overall means are over more than one value."""
        return (self.common.count or len(self.links)) * self.seeds > 1

    def names(self) -> list[tuple[str, bool]]:
        """Return each scheme's name and whether it is learned, in order."""
        return [(s.scheme, s.learned) for s in self.schemes]

    def ranking(self) -> list[str]:
        """Return the schemes that have a run, best power first."""
        return [s.scheme for s in self.schemes if s.scheme not in self.common.without_runs]

    def notes(self) -> tuple[str, ...]:
        """Return sentences that say which runs failed, and what the means leave out for that."""
        return (*self.failures(), *self.common.notes())

    def failures(self) -> tuple[str, ...]:
        """Return a sentence for each scheme of which runs failed."""
        runs = len(self.links) * self.seeds
        return tuple(
            f"{s.scheme}: {s.failed} of {runs} run{'s' * (runs != 1)} failed and "
            f"{'is' if s.failed == 1 else 'are'} left out of its means."
            for s in self.schemes
            if s.failed
        )


def summarise(scores: Sequence[SchemeScores]) -> Summary:
    """Sum up scores of schemes that were measured on the same links.

    Raises:
        ValueError: There are no scores, or their links or seeds differ.
    """
    if not scores:
        raise ValueError("no scores to sum up")
    first = scores[0]
    for other in scores:
        if other.links != first.links or other.seeds != first.seeds:
            raise ValueError(f"{other.scheme} and {first.scheme} ran on other links or seeds")
    links = _unique(first.links)
    metrics = METRICS
    if any(s.has_sender_metrics for s in scores):
        metrics += SENDER_METRICS
    common = common_links(scores, links)
    found = [_summarise(s, links, common, metrics) for s in scores]
    ranked = sorted(
        found, key=lambda s: (s.scheme in common.without_runs, -_order(s.overall["power"].mean))
    )
    return Summary(tuple(ranked), links, first.seeds, common, metrics)


def to_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as the module describes."""
    return {
        "format": "distrlcc-summary",
        "version": 1,
        "confidence": CONFIDENCE,
        "links": len(summary.links),
        "seeds": summary.seeds,
        "metrics": {
            m.key: {
                "unit": "share" if m.unit == "%" else m.unit,
                "better": m.better,
                "definition": m.definition,
            }
            for m in summary.metrics
        },
        "ranking": summary.ranking(),
        "common_scenarios": summary.common.count,
        "left_out_scenarios": [
            {"scenario": one.link, "schemes": list(one.schemes)} for one in summary.common.left_out
        ],
        "without_runs": list(summary.common.without_runs),
        "schemes": {
            s.scheme: {
                "learned": s.learned,
                "failed_runs": s.failed,
                "overall": {key: value.to_json() for key, value in s.overall.items()},
                "scenarios": {
                    link: {key: value.to_json() for key, value in values.items()}
                    for link, values in s.scenarios.items()
                },
            }
            for s in summary.schemes
        },
    }


def print_table(summary: Summary, console: Console) -> None:
    """Print the ranked table as it fits the console's width."""
    console.print(table(summary, wide=console.width >= _WIDE))


def table(summary: Summary, *, wide: bool = False) -> Table:
    """Return the ranked table for a terminal; learned policies are bold.

    Args:
        summary: What to show.
        wide: Put intervals beside the means, for 130 columns; otherwise below them, for 80.
    """
    links, seeds = len(summary.links), summary.seeds
    means = f"; mean ± half of the {CONFIDENCE:.0%} interval" if summary.has_intervals else ""
    common = summary.common.count
    over = f", means over {common} of them" if 0 < common < links else ""
    result = Table(
        title=f"{links} link{'s' * (links != 1)}{over}, {seeds} seed{'s' * (seeds != 1)} each"
        f"{means}",
        caption="\n".join(summary.notes()) or None,
        caption_style="",
        caption_justify="left",
        title_style="",
        title_justify="left",
        header_style="",
        box=box.SIMPLE_HEAD,
        padding=(0, 2, 0, 0) if wide else (0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    result.add_column("scheme", overflow="fold")
    for head in TABLE_METRICS.values():
        result.add_column(Text(head.replace(" ", "\n")), justify="right")
    for scheme in summary.schemes:
        cells = [Text(scheme.scheme)]
        for key in TABLE_METRICS:
            mean, half = scheme.overall[key].texts(metric(key))
            cell = Text(mean)
            if half:
                cell.append(f"{' ' if wide else chr(10)}±{half}", style="dim")
            cells.append(cell)
        result.add_row(*cells, style="bold" if scheme.learned else "")
    return result


def _summarise(
    scores: SchemeScores, links: tuple[str, ...], common: CommonLinks, metrics: Sequence[Metric]
) -> SchemeSummary:
    values, taken = scores.values(metrics), common.of(scores)
    # A scheme without a run has no links of its own: all are NaN, and so are its means.
    overall = mean_intervals(values[:, taken] if scores.has_run.any() else values).tolist()
    alone = link_intervals(values).tolist()
    return SchemeSummary(
        scheme=scores.scheme,
        learned=scores.learned,
        overall={m.key: Interval(*overall[i]) for i, m in enumerate(metrics)},
        scenarios={
            link: {m.key: Interval(*alone[i][n]) for i, m in enumerate(metrics)}
            for n, link in enumerate(links)
        },
        failed=scores.failed,
    )


def _order(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Number the repetitions of a name, so that no link hides another."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)
