"""How contenders share links: means and intervals over a suite, as JSON and as a table.

docs/fairness.md says which keys the JSON has; they stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from distrlcc.evaluation.bootstrap import CONFIDENCE, mean_intervals
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.fairness import SharedRun, fairness_of, run_shared, running_rates
from distrlcc.evaluation.scores import FAIRNESS_METRICS, Metric, defined_mean
from distrlcc.evaluation.summary import MeanInterval, by_metric, figure, interval_table
from distrlcc.sim.scenario import Scenario
from distrlcc.types import FloatArray


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
    def overall(self) -> dict[str, MeanInterval]:
        """Means over links and seeds, with intervals, by metric."""
        return by_metric(FAIRNESS_METRICS, mean_intervals(self.values))

    def cells(self, metrics: Sequence[Metric]) -> list[tuple[str, str]]:
        """Return means and half widths as shown."""
        overall = self.overall
        return [overall[m.key].texts(m) for m in metrics]


def measure(
    contender: Contender, suite: str, scenarios: Sequence[Scenario], seeds: int = 1
) -> SuiteFairness:
    """Run a contender on a suite's links, once per seed."""
    by_seed = [run_shared(contender, scenarios, seed) for seed in range(seeds)]
    scores = [[fairness_of(run) for run in runs] for runs in by_seed]  # [S][L]
    values = np.array(
        [[[one[m.key] for one in row] for row in scores] for m in FAIRNESS_METRICS]
    ).swapaxes(1, 2)
    return SuiteFairness(contender.name, contender.learned, suite, values, tuple(by_seed[0]))


def shown_metrics(rows: Sequence[SuiteFairness]) -> list[Metric]:
    """Return the metrics that any contender has a mean of."""
    found = [row.overall for row in rows]
    return [m for m in FAIRNESS_METRICS if any(math.isfinite(o[m.key].mean) for o in found)]


def table(suite: str, rows: Sequence[SuiteFairness]) -> Table:
    """Return a suite's table for a terminal: a row for each contender, learned ones bold."""
    links, seeds = rows[0].values.shape[1:]
    shown = shown_metrics(rows)
    return interval_table(
        f"{suite}: {links} link{'s' * (links != 1)}, {seeds} seed{'s' * (seeds != 1)} each",
        ["flows", *(m.title for m in shown)],
        [(row.contender, row.learned, row.cells(shown)) for row in rows],
    )


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
        "metrics": {m.key: m.describe() for m in FAIRNESS_METRICS},
        "suites": suites,
    }


def _link(run: SharedRun, values: FloatArray) -> dict[str, Any]:
    rows = zip(FAIRNESS_METRICS, values, strict=True)
    means = {m.key: figure(defined_mean(row)) for m, row in rows}
    shown = ("scheme", "start_s", "stop_s", "extra_rtt_ms")
    flows = [
        {name: getattr(flow, name) for name in shown} | {"throughput_mbps": figure(rate)}
        for flow, rate in zip(run.scenario.flows, running_rates(run).tolist(), strict=True)
    ]
    return {**means, "flows": flows}
