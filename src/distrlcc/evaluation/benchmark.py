"""Suites with the scores that are taken on them, for recipes' results and for the scorecard."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.fairness_summary import measure
from distrlcc.evaluation.recovery import recovery_scores
from distrlcc.evaluation.runner import evaluate
from distrlcc.evaluation.scores import FAIRNESS_METRICS, METRICS, RECOVERY_METRICS, Metric
from distrlcc.evaluation.summary import MeanInterval, over_links
from distrlcc.sim.suites import load_suite, trace_suite

ALONE = ("power", "utilisation", "first_second_utilisation", "queueing_delay_rtt", "excess_loss")
"""Scores of one flow on a link: keys of `distrlcc.evaluation.scores.METRICS`."""
TOGETHER = ("jain", "utilisation", "queueing_delay_rtt", "converged", "convergence_s")
BESIDE = ("share", "tolerable", "utilisation", "queueing_delay_rtt")
"""Scores of several flows: keys of `distrlcc.evaluation.scores.FAIRNESS_METRICS`."""
RECOVERY = ("recovery_rtts", "recovered")
"""Scores after changes: keys of `distrlcc.evaluation.scores.RECOVERY_METRICS`."""
PREFER = ", prefer "  # between a suite and a preference in the labels of rows of results
RIVALS = ("cubic", "bbr", "vegas", "copa")


@dataclass(frozen=True)
class Benchmark:
    """Links on which contenders are scored."""

    suite: str  # a suite's name, or a link's; its split `test`
    peers: tuple[str, ...] = (*RIVALS, "oracle")  # schemes that are scored beside it
    links: int | None = None  # at most so many of its links
    metrics: tuple[str, ...] = ALONE
    prefer: float | None = None  # what a policy is told to prefer; None: its default
    name: str = ""  # what rows of results call the links; empty: as the suite
    is_trace: bool = False  # a trace: its link has 20 ms one way and a queue of 100 packets

    @property
    def label(self) -> str:
        """Name in rows of results."""
        after = ", after changes" if self.metrics == RECOVERY else ""
        return (
            (self.name or self.suite)
            + after
            + ("" if self.prefer is None else f"{PREFER}{self.prefer:g}")
        )

    def means(self, contender: Contender) -> dict[str, float]:
        """Return a contender's means over the links; NaN where a run does not count."""
        return {key: found.mean for key, found in self.scores(contender)[0].items()}

    def scores(self, contender: Contender) -> tuple[dict[str, MeanInterval], str]:
        """Return a contender's means over links with a value, and why they are void (all NaN)."""
        suite = trace_suite([self.suite]) if self.is_trace else load_suite(self.suite)
        scenarios = suite.scenarios("test", self.links)
        if self.metrics == RECOVERY:
            return recovery_scores(contender, scenarios)
        if {"jain", "share"} & set(self.metrics):
            shared = measure(contender, self.suite, scenarios)
            return {m: shared.overall[m] for m in self.metrics}, "".join(map(str, shared.void[:1]))
        found, _ = evaluate(contender, scenarios)
        metrics = [known_metric(key, self.metrics) for key in self.metrics]
        void = found.void()
        values = found.values(metrics)
        values = np.full_like(values, math.nan) if void else values
        return over_links(metrics, values), "".join(map(str, void[:1]))


def known_metric(key: str, beside: Collection[str]) -> Metric:
    """Return how a score is shown, given the keys of those beside it."""
    shared = {"jain", "share"} & set(beside)
    known = FAIRNESS_METRICS if shared else METRICS + RECOVERY_METRICS
    return next(metric for metric in known if metric.key == key)
