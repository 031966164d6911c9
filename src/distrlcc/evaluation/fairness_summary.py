"""How contenders share links, over a suite; docs/fairness.md says which keys the JSON has."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from distrlcc.evaluation.bootstrap import CONFIDENCE
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.fairness import SharedRun, fairness_of, run_shared, running_rates
from distrlcc.evaluation.scores import FAIRNESS_METRICS, VoidRun, defined_mean, shown
from distrlcc.evaluation.summary import MeanInterval, figure, means_table, over_links, void_note
from distrlcc.evaluation.tables import Table
from distrlcc.sim.scenario import Scenario
from distrlcc.types import FloatArray


@dataclass(frozen=True)
class SuiteFairness:
    """A contender's figures on a suite's links."""

    contender: str
    learned: bool
    suite: str
    values: FloatArray  # [M, L, S], in the order of `FAIRNESS_METRICS`; NaN: nothing to measure
    runs: tuple[SharedRun, ...]  # those of the first seed, one for each link
    void: tuple[VoidRun, ...] = ()  # runs that do not count: with any there are no means

    @property
    def name(self) -> str:
        """The contender's name as shown."""
        return shown(self.contender) + " (void)" * bool(self.void)

    @cached_property
    def overall(self) -> dict[str, MeanInterval]:
        """Means over links and seeds, with intervals and tails, by metric."""
        values = np.full_like(self.values, math.nan) if self.void else self.values
        return over_links(FAIRNESS_METRICS, values)

    @property
    def notes(self) -> list[str]:
        """Sentences on what does not count, and on the links that means leave out."""
        _, links, seeds = self.values.shape
        said = [void_note(self.void, links * seeds)] if self.void else []
        if coarse := sum(run.is_coarse for run in self.runs):
            said.append(
                f"{self.name} on {self.suite}: on {coarse} of {links} links windows of 1 s are "
                "shorter than a round trip, or hold less than ten packets of each flow: "
                "there Jain's index and convergence show how flows take turns, not their shares."
            )
        for m, values in zip(FAIRNESS_METRICS, self.values, strict=True):
            lacking = int((~np.isfinite(values)).all(axis=1).sum())
            if 0 < lacking < links and m.key in ("jain", "share") and not self.void:
                rest = f"{lacking} of {links} links, where nothing was delivered or no window is"
                said.append(f"{self.name} on {self.suite}: {m.label} leaves out {rest} settled.")
        return said


def measure(
    contender: Contender, suite: str, scenarios: Sequence[Scenario], seeds: int = 1
) -> SuiteFairness:
    """Run a contender on a suite's links, once per seed."""
    by_seed = [run_shared(contender, scenarios, seed) for seed in range(seeds)]
    scores = [[fairness_of(run) for run in runs] for runs in by_seed]  # [S][L]
    values = np.array(
        [[[one[m.key] for one in row] for row in scores] for m in FAIRNESS_METRICS]
    ).swapaxes(1, 2)
    name, learned = contender.name, contender.learned
    broken = [(seed, run) for seed, runs in enumerate(by_seed) for run in runs if run.broken]
    void = tuple(VoidRun(name, run.scenario.name, seed, run.broken) for seed, run in broken)
    return SuiteFairness(name, learned, suite, values, tuple(by_seed[0]), void)


def table(suite: str, rows: Sequence[SuiteFairness]) -> Table:
    """Return a suite's table: a row for each contender, the metrics that any has a mean of."""
    found = [row.overall for row in rows]
    metrics = [m for m in FAIRNESS_METRICS if any(math.isfinite(o[m.key].mean) for o in found)]
    lines = [(shown(row.contender), row.overall, row.learned, bool(row.void)) for row in rows]
    return means_table(suite, "flows", lines, metrics)


def to_json(rows: Sequence[SuiteFairness]) -> dict[str, Any]:
    """Return the figures as the module describes."""
    suites: dict[str, Any] = {}
    for row in rows:
        overall = {key: value.to_json(tails=True) for key, value in row.overall.items()}
        links = {r.scenario.name: _link(r, row.values[:, n]) for n, r in enumerate(row.runs)}
        told = {"learned": row.learned, "overall": overall}
        told |= {"void_runs": [asdict(run) for run in row.void], "links": links}
        suites.setdefault(row.suite, {})[row.contender] = told
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
