"""Fairness of contenders on suites of shared links: means, intervals, a table, JSON.

``to_json`` gives, with keys that stay::

    {"format": "distrlcc-fairness", "version": 1, "confidence": 0.95, "seeds": S,
     "metrics": {metric: {"unit", "better", "definition"}},
     "suites": {suite: {contender: {
         "learned": bool,
         "overall": {metric: {"mean", "low", "high"}},
         "links": {link: {
             metric: mean over seeds, ...,
             "flows": [{"scheme", "start_s", "stop_s", "extra_rtt_ms", "throughput_mbps"},
                       ...]}}}}}}

What is undefined, such as Jain's index of a link with one flow, is null. Flows' throughputs are
those of the first seed while they run; the contender's flows are those of scheme ``agent``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from distrlcc.evaluate.bootstrap import CONFIDENCE, mean_intervals
from distrlcc.evaluate.contender import Contender
from distrlcc.evaluate.fairness import TOLERANCE, fairness_of, running_rates
from distrlcc.evaluate.scores import Metric
from distrlcc.evaluate.shared_run import SharedRun, run_shared
from distrlcc.evaluate.summary import Interval
from distrlcc.sim.scenario import Scenario
from distrlcc.types import FloatArray

FAIRNESS_METRICS: tuple[Metric, ...] = (
    Metric(
        "jain", "Jain", "", 3, "higher",
        "Jain's index of the flows' throughputs in windows of 1 s, mean over those that begin 3 s "
        "or more after the last join or leaving; 1 is equal.",
    ),
    Metric(
        "converged", "converged", "%", 0, "higher",
        f"Joins after which every flow comes within {TOLERANCE:.0%} of an equal share, in windows "
        "of 1 s, for 20 of the longest base RTT.", 100.0,
    ),
    Metric(
        "convergence_s", "convergence", "s", 2, "lower",
        "Time from a join until then, mean over the joins that converged.",
    ),
    Metric(
        "share", "share", "%", 1, None,
        "What an agent delivers of what it and a scheme's flow deliver, in the settled windows; "
        "50% is equal.", 100.0,
    ),
    Metric(
        "tolerable", "1/3 to 3", "%", 0, "higher",
        "Links on which the agent has between a third and three times what the scheme's flow has.",
        100.0,
    ),
    Metric(
        "utilisation", "utilisation", "%", 1, "higher",
        "Share of the link's capacity that was used after the first second.", 100.0,
    ),
    Metric(
        "queueing_delay_rtt", "queueing delay", "RTT", 3, "lower",
        "Time in the queue in base RTTs, mean over all flows' packets after the first second.",
    ),
    Metric(
        "excess_loss", "excess loss", "%", 2, "lower",
        "Share of the packets sent that the queue dropped.", 100.0,
    ),
)  # fmt: skip
"""Fields of `distrlcc.evaluate.fairness.FairnessScores`."""


@dataclass(frozen=True)
class SuiteFairness:
    """A contender's figures on a suite's links."""

    contender: str
    learned: bool
    suite: str
    values: FloatArray
    """``[M, L, S]``, in the order of `FAIRNESS_METRICS`; NaN where there is nothing to measure."""
    runs: tuple[SharedRun, ...]
    """Those of the first seed, one for each link."""

    @property
    def overall(self) -> dict[str, Interval]:
        """Means over links and seeds, with intervals, by metric."""
        rows = mean_intervals(self.values).tolist()
        return {m.key: Interval(*row) for m, row in zip(FAIRNESS_METRICS, rows, strict=True)}


def measure(
    contender: Contender, suite: str, scenarios: Sequence[Scenario], seeds: int = 1
) -> SuiteFairness:
    """Run a contender on a suite's links, once per seed."""
    by_seed = [run_shared(contender, scenarios, seed) for seed in range(seeds)]
    scores = [[fairness_of(run) for run in runs] for runs in by_seed]
    values = np.array([
        [[getattr(one, m.key) for one in row] for row in scores] for m in FAIRNESS_METRICS
    ])  # fmt: skip
    return SuiteFairness(
        contender.name, contender.policy is not None, suite, np.moveaxis(values, 1, 2),
        tuple(by_seed[0]),
    )  # fmt: skip


def table(suite: str, rows: Sequence[SuiteFairness]) -> Table:
    """Return a suite's table for a terminal: a row for each contender, learned ones bold."""
    links, seeds = rows[0].values.shape[1:]
    found = [row.overall for row in rows]
    shown = [m for m in FAIRNESS_METRICS if any(math.isfinite(o[m.key].mean) for o in found)]
    result = Table(
        title=f"{suite}: {links} link{'s' * (links != 1)}, {seeds} seed{'s' * (seeds != 1)} each",
        title_style="", title_justify="left", header_style="", box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    result.add_column("flows", overflow="fold")
    for m in shown:
        result.add_column(Text(m.title.replace(" ", "\n")), justify="right")
    for row, overall in zip(rows, found, strict=True):
        cells = [Text(row.contender)]
        for m in shown:
            mean, half = overall[m.key].texts(m)
            cell = Text(mean)
            if half:
                cell.append(f"\n±{half}", style="dim")
            cells.append(cell)
        result.add_row(*cells, style="bold" if row.learned else "")
    return result


def to_json(rows: Sequence[SuiteFairness]) -> dict[str, Any]:
    """Return the figures as the module describes."""
    suites: dict[str, Any] = {}
    for row in rows:
        suites.setdefault(row.suite, {})[row.contender] = {
            "learned": row.learned,
            "overall": {key: value.to_json() for key, value in row.overall.items()},
            "links": {
                run.scenario.name: _link(run, row.values[:, n]) for n, run in enumerate(row.runs)
            },
        }
    return {
        "format": "distrlcc-fairness",
        "version": 1,
        "confidence": CONFIDENCE,
        "seeds": rows[0].values.shape[2],
        "metrics": {
            m.key: {
                "unit": "share" if m.unit == "%" else m.unit,
                "better": m.better,
                "definition": m.definition,
            }
            for m in FAIRNESS_METRICS
        },
        "suites": suites,
    }


def _link(run: SharedRun, values: FloatArray) -> dict[str, Any]:
    means = {
        m.key: _figure(float(row[np.isfinite(row)].mean()) if np.isfinite(row).any() else math.nan)
        for m, row in zip(FAIRNESS_METRICS, values, strict=True)
    }
    flows = [
        {
            "scheme": flow.scheme,
            "start_s": flow.start_s,
            "stop_s": flow.stop_s,
            "extra_rtt_ms": flow.extra_rtt_ms,
            "throughput_mbps": _figure(rate),
        }
        for flow, rate in zip(run.scenario.flows, running_rates(run).tolist(), strict=True)
    ]
    return {**means, "flows": flows}


def _figure(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
