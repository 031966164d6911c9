"""Means with 95 % intervals, ranked by power; docs/metrics.md says which keys the JSON has."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from distrlcc.errors import counted
from distrlcc.evaluation.bootstrap import CONFIDENCE, link_intervals, mean_intervals
from distrlcc.evaluation.looks import color_pairs
from distrlcc.evaluation.scores import (
    METRICS,
    SENDER_METRICS,
    TABLE_METRICS,
    Metric,
    SchemeScores,
    VoidRun,
    defined_mean,
    defined_means,
    shown,
)
from distrlcc.evaluation.tables import Cell, Column, Row, Table, printed
from distrlcc.sim.suites import unique_names
from distrlcc.types import FloatArray

_WIDE = 130  # columns of a terminal from which on an interval stands beside its mean and not below
_MOST_NAMES = 10  # links that a sentence names
_MOST_GUARDED = 0.1  # share of the time in the guard's hold that a sentence tells of
ORACLE = "oracle"  # it knows the link, and is no rival
FORMAT, VERSION = "distrlcc-summary", 1  # of the JSON


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean and its bootstrap interval, whose bounds are NaN if undefined."""

    mean: float
    low: float
    high: float
    p10: float = math.nan  # tenth percentile of the links, worst first; NaN: none
    worst: float = math.nan  # the worst link's value; NaN: none

    @property
    def half_width(self) -> float:
        """Half the interval, for a ± sign; NaN if undefined."""
        return (self.high - self.low) / 2

    def texts(self, metric: Metric) -> tuple[str, str]:
        """Return the mean and the half width as shown: ``("95.1", "0.3")``, a dash, or no width."""
        half = self.half_width
        return metric.text(self.mean), metric.text(half) if math.isfinite(half) else ""

    def tails(self, metric: Metric) -> tuple[str, str]:
        """Return `TAILS` as shown; empty without any."""
        p10, worst = ("" if math.isnan(v) else metric.text(v) for v in (self.p10, self.worst))
        return p10, worst

    def cell(self, metric: Metric, how: str = "") -> Cell:
        """Return a table's cell of the mean, with its interval and tails."""
        (text, half), tails = self.texts(metric), self.tails(metric)
        return Cell(text, half, tails, how, float(text) if math.isfinite(self.mean) else None)

    def to_json(self, *, tails: bool = False) -> dict[str, float | None]:
        """Return the mean and the bounds as `figure` has them, and the tails."""
        found = {key: figure(value) for key, value in asdict(self).items()}
        return found if tails else {key: found[key] for key in ("mean", "low", "high")}


MeansRow = tuple[str, dict[str, MeanInterval], bool, bool]
"""A name, means by metric, whether it is learned, and whether it does not count."""


def by_metric(
    metrics: Sequence[Metric], rows: FloatArray, links: FloatArray | None = None
) -> dict[str, MeanInterval]:
    """Return means and bounds, ``[M, 3]``, by the metrics' keys, with tails of ``[M, L]``."""
    tails = [(math.nan, math.nan)] * len(metrics)
    if links is not None:
        tails = [m.tails(values) for m, values in zip(metrics, links, strict=True)]
    found = zip(metrics, rows.tolist(), tails, strict=True)
    return {m.key: MeanInterval(mean, low, high, *tail) for m, (mean, low, high), tail in found}


def means_table(
    title: str, head: str, rows: Sequence[MeansRow], metrics: Sequence[Metric]
) -> Table:
    """Return a table of rows of means, under these heads."""
    heads = [Column(head, left=True), *map(Column.of, metrics)]
    lines = [
        Row.of(name, [found[m.key].cell(m) for m in metrics], learned, void)
        for name, found, learned, void in rows
    ]
    return Table(title, heads, lines)


def over_links(metrics: Sequence[Metric], values: FloatArray) -> dict[str, MeanInterval]:
    """Return means of values ``[M, L, S]`` with intervals and tails, by the metrics' keys."""
    return by_metric(metrics, mean_intervals(values), defined_means(values))


def figure(value: float, digits: int = 6) -> float | None:
    """Return a value of some significant digits for JSON; None where it is undefined."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Any, digits: int = 6) -> list[float | None]:
    """Return an array's values as `figure` has them."""
    return [figure(x, digits) for x in np.asarray(values).tolist()]


@dataclass(frozen=True, slots=True)
class SchemeSummary:
    """One scheme's means."""

    scheme: str
    learned: bool
    overall: dict[str, MeanInterval]  # by metric; over the links that are common to all schemes
    scenarios: dict[str, dict[str, MeanInterval]]  # by link, then by metric
    failed: int  # runs that do not count, which are left out of the means
    idle: int = 0  # runs that count in which nothing was delivered

    @property
    def shown(self) -> str:
        """Name as shown."""
        return shown(self.scheme)


@dataclass(frozen=True, slots=True)
class Summary:
    """All schemes' means, best power first, those without a run last."""

    schemes: tuple[SchemeSummary, ...]
    links: tuple[str, ...]  # names of the L links, each once
    seeds: int  # runs of each link
    common: int
    """Links that the overall means are over: those on which every scheme has a run.

    Otherwise the easy links alone would rank a scheme that failed on the hard ones. If it is 0, no
    link is common, and each scheme's means are over its own.
    """
    left_out: dict[str, tuple[str, ...]]  # the other links, and the schemes with no run there
    without_runs: tuple[str, ...]  # schemes of which no run counts: they are not ranked
    metrics: tuple[Metric, ...]  # what was measured
    void: tuple[VoidRun, ...] = ()  # runs that do not count
    digests: dict[str, str] = field(default_factory=dict)  # of links; empty: unknown

    @property
    def has_intervals(self) -> bool:
        """Whether the overall means are over more than one value."""
        return (self.common or len(self.links)) * self.seeds > 1

    def names(self) -> list[tuple[str, bool]]:
        """Return each scheme's name and whether it is learned, in order."""
        return [(s.scheme, s.learned) for s in self.schemes]

    def ranking(self) -> list[str]:
        """Return the schemes of which a run counts, best power first."""
        return [s.scheme for s in self.schemes if s.scheme not in self.without_runs]

    def best_policy(self) -> SchemeSummary | None:
        """Return the policy that ranks first; None: no policy has a run that counts."""
        return next((s for s in self.schemes if s.learned and s.scheme in self.ranking()), None)

    def answer(self) -> str:
        """Return whether the best policy is better than the best scheme, and on how many links."""
        best, ranked = self.best_policy(), self.ranking()
        rivals = [name for name in ranked if name != ORACLE]
        if best is None or best.scheme not in rivals:
            return ""
        m = next(m for m in self.metrics if m.key == "utilisation")
        apart = ", the oracle apart" if len(rivals) < len(ranked) else ""
        on = f", on {self.common} of {len(self.links)} links" * bool(self.left_out and self.common)
        said = (
            f"{best.shown} ranks {rivals.index(best.scheme) + 1} of {len(rivals)} by power{apart}, "
            f"with {best.overall[m.key].texts(m)[0]}% of the link used{on}"
        )
        # Link by link beside the best scheme: ahead, and where it has less than half.
        other = next((s for s in self.schemes if not s.learned and s.scheme in rivals), None)
        if other is None:
            return f"{said}."
        both = [[s.scenarios[link]["power"].mean for s in (best, other)] for link in self.links]
        pairs = np.array(both, float).reshape(-1, 2)
        own, theirs = pairs[np.isfinite(pairs).all(axis=1)].T
        if not len(own):
            return f"{said}."
        ahead = f"{(own > theirs).sum()} of {counted(len(own))}"
        said += f"; it is ahead of {other.shown} on {ahead}"
        far = (own < 0.5 * theirs).sum()
        return f"{said}, and has less than half of its power on {far}." if far else f"{said}."

    def notes(self) -> tuple[str, ...]:
        """Return sentences that say which runs do not count, and what else the means hide."""
        said = [*self.void_notes(), *self.link_notes()]
        for s in self.schemes:
            if s.idle:
                runs = len(self.links) * self.seeds
                others = ", so that its delays are of the other runs" * (s.idle < runs - s.failed)
                said.append(
                    f"{s.shown} delivered nothing in {s.idle} of {counted(runs, 'run')}: power 0 "
                    f"there, and no delay{others}."
                )
            if (guarded := s.overall["guarded"].mean) > _MOST_GUARDED:
                said.append(
                    f"{s.shown}: its guard held a lower window than it chose for {guarded:.0%} of "
                    "the time, so that a part of its scores is the guard's."
                )
        return tuple(said)

    def void_notes(self) -> list[str]:
        """Return a sentence for each scheme that has runs that do not count."""
        runs = len(self.links) * self.seeds
        mine = ([run for run in self.void if run.scheme == s.scheme] for s in self.schemes)
        return [void_note(void, runs) for void in mine if void]

    def struck(self, scheme: str, m: Metric, link: str | None = None) -> float:
        """Return a scheme's mean over its runs that do not count, of a link or all; NaN: none."""
        runs = [r for r in self.void if r.scheme == scheme and link in (None, r.scenario)]
        return defined_mean(np.array([run.figures.get(m.key) for run in runs], float))

    def link_notes(self) -> tuple[str, ...]:
        """Return sentences that say what is left out of the means, and because of which schemes."""
        found = []
        if self.left_out and not self.common:
            found.append(
                "No link has a run of every scheme that counts: each one's means over links are "
                "over those that it has, so the ranking compares different links."
            )
        elif self.left_out:
            named = [f"{k} ({', '.join(map(shown, v))})" for k, v in self.left_out.items()]
            more = len(named) - _MOST_NAMES
            names = ", ".join(named[:_MOST_NAMES])
            names += f" and {more} more, which JSON names" if more > 0 else ""
            found.append(
                f"Means over links, and so the ranking, leave out {len(self.left_out)} of "
                f"{len(self.links)} links, on which not every scheme has a run that counts: "
                f"{names}."
            )
        if self.without_runs:
            several = len(self.without_runs) > 1
            found.append(
                f"{', '.join(map(shown, self.without_runs))} {'have' if several else 'has'} no run "
                f"that counts and {'are' if several else 'is'} not ranked; no link is left out "
                f"because of {'them' if several else 'it'}."
            )
        return tuple(found)


def summarise(scores: Sequence[SchemeScores]) -> Summary:
    """Sum up scores of schemes that were measured on the same links."""
    first = scores[0]
    links, metrics = tuple(unique_names(first.links)), METRICS
    scores = [replace(one, links=links) for one in scores]
    if any(SENDER_METRICS[0].key in s.figures for s in scores):
        metrics += SENDER_METRICS
    # The links on which a run of every scheme counts, of those schemes that have any.
    entered = [one for one in scores if one.has_run.any()]
    without = tuple(one.scheme for one in scores if not one.has_run.any())
    runs = np.array([one.has_run for one in entered], bool).reshape(-1, len(links))
    common = np.asarray(runs.all(axis=0))
    left_out = {
        link: tuple(one.scheme for one, ran in zip(entered, runs[:, k], strict=True) if not ran)
        for k, link in enumerate(links)
        if not common[k]
    }
    # Means, the best power first.
    found = [_summarise(s, common, metrics) for s in scores]

    def rank(one: SchemeSummary) -> tuple[bool, float]:
        power = one.overall["power"].mean
        return one.scheme in without, -power if math.isfinite(power) else math.inf

    ranked, seeds = tuple(sorted(found, key=rank)), first.ran.shape[1]
    void = tuple(run for one in scores for run in one.void())
    digests = dict(zip(links, first.digests, strict=False))
    counts = int(common.sum()), left_out, without
    return Summary(ranked, links, seeds, *counts, metrics, void, digests)


def to_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as the module describes."""
    schemes = {}
    for s in summary.schemes:
        overall = {key: value.to_json(tails=True) for key, value in s.overall.items()}
        links = {link: {k: v.to_json() for k, v in by.items()} for link, by in s.scenarios.items()}
        told = {"learned": s.learned, "failed_runs": s.failed}
        schemes[s.scheme] = {**told, "overall": overall, "scenarios": links}
    left_out = [{"scenario": k, "schemes": list(v)} for k, v in summary.left_out.items()]
    return {
        "format": FORMAT,
        "version": VERSION,
        "confidence": CONFIDENCE,
        "links": len(summary.links),
        "seeds": summary.seeds,
        "metrics": {m.key: m.describe() for m in summary.metrics},
        "ranking": summary.ranking(),
        "common_scenarios": summary.common,
        "left_out_scenarios": left_out,
        "without_runs": list(summary.without_runs),
        "void_runs": [asdict(run) for run in summary.void],
        "digests": summary.digests,
        "schemes": schemes,
    }


def print_table(summary: Summary, console: Console) -> None:
    """Print the ranked table as it fits the console's width."""
    links, seeds, common = len(summary.links), summary.seeds, summary.common
    over = f", means over {common} of them" if 0 < common < links else ""
    means = f"; mean ± half of the {CONFIDENCE:.0%} interval" if summary.has_intervals else ""
    title = f"{counted(links)}{over}, {counted(seeds, 'seed')} each{means}"
    wide = console.width >= _WIDE
    console.print(printed(ranked(summary, marked=True), title, summary.notes(), wide=wide))


def ranked(summary: Summary, *, marked: bool = False) -> Table:
    """Return the table of means, best power first; void ones may be marked in their names."""
    colors = color_pairs(summary.names())
    columns = [cells_of(summary, m) for m in TABLE_METRICS]
    rows = []
    for s, *cells in zip(summary.schemes, *columns, strict=True):
        row = Row.of(s.shown, cells, s.learned, s.scheme in summary.without_runs)
        rows.append(replace(row, name=row.name if marked else s.shown, colors=colors[s.scheme]))
    heads = [Column("scheme", left=True), *map(Column.of, TABLE_METRICS)]
    return Table("Schemes, ranked by power", heads, rows, "ranked")


def cells_of(summary: Summary, m: Metric, link: str | None = None) -> list[Cell]:
    """Return each scheme's mean with its interval, and how it stands: best, with ties, or void."""
    means = [s.overall if link is None else s.scenarios[link] for s in summary.schemes]
    cells = [found[m.key].cell(m) for found in means]
    # The oracle is no rival, and delays of some runs only are not the best.
    values = [
        None if s.scheme == ORACLE or (s.idle and m.better == "lower") else cell.value
        for s, cell in zip(summary.schemes, cells, strict=True)
    ]
    judge = {"higher": max, "lower": min}.get(m.better or "")
    best = judge((v for v in values if v is not None), default=None) if judge else None
    # What is struck through: there is no run that counts.
    for place, s in enumerate(summary.schemes):
        if s.scheme in summary.without_runs or s.scheme in summary.left_out.get(link or "", ()):
            cells[place] = Cell(m.text(summary.struck(s.scheme, m, link)), how="void")
        elif best is not None and values[place] == best:
            cells[place] = replace(cells[place], how="best")
    return cells


def _summarise(
    scores: SchemeScores, common: NDArray[np.bool_], metrics: Sequence[Metric]
) -> SchemeSummary:
    values, has_run = scores.values(metrics), scores.has_run
    # Over the common links, or its own; of a scheme without a run all are NaN, as are its means.
    taken = common if common.any() else has_run
    alone = link_intervals(values)
    return SchemeSummary(
        scores.scheme,
        scores.learned,
        over_links(metrics, values[:, taken] if has_run.any() else values),
        {link: by_metric(metrics, alone[:, n]) for n, link in enumerate(scores.links)},
        int((~scores.ran).sum()),
        int((scores.ran & (scores.figures["throughput_mbps"] == 0)).sum()),
    )


def void_note(void: Sequence[VoidRun], runs: int) -> str:
    """Return a sentence on one scheme's runs that do not count, of so many."""
    does, first = "does" if len(void) == 1 else "do", void[0]
    said = f"{shown(first.scheme)}: {len(void)} of {counted(runs, 'run')} {does} not count"
    return f"{said} ({'such as ' * (len(void) > 1)}{first.scenario}: {first.reason})."
