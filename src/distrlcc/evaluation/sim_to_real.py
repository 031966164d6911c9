"""The same senders in the simulator and on emulated links: how far apart they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distrlcc.evaluation.scores import Metric, SchemeScores, defined_mean, metric, shown

BOUNDS = {"throughput_mbps": 0.05, "p95_rtt_ms": 0.10}
"""Figures that are compared; differences beyond these are marked."""


@dataclass(frozen=True)
class Compared:
    """A figure in both worlds: the mean over the runs that count, NaN if none does."""

    metric: Metric
    simulated: float
    emulated: float

    @property
    def difference(self) -> float:
        """The emulator's figure over the simulator's, less 1."""
        return self.emulated / self.simulated - 1.0 if self.simulated else math.nan

    @property
    def far(self) -> bool:
        """Whether the two differ by more than the bound."""
        return abs(self.difference) > BOUNDS[self.metric.key]

    def texts(self) -> tuple[str, str, str]:
        """Return both figures and their difference as shown; dashes if undefined."""
        difference = f"{self.difference:+.1%}" if math.isfinite(self.difference) else "-"
        return self.metric.text(self.simulated), self.metric.text(self.emulated), difference


@dataclass(frozen=True)
class WorldComparison:
    """One sender on one link in both worlds."""

    link: str
    sender: str
    mbps: Compared  # throughput
    p95_ms: Compared  # 95th percentile of the RTT
    runs: int
    failed: int  # runs that do not count, which are left out of both worlds' figures

    @property
    def shown(self) -> str:
        """The sender's name as shown, with how many of its runs are void."""
        void = f" ({self.failed} of {self.runs} run{'s' * (self.runs > 1)} void)"
        return shown(self.sender) + void * bool(self.failed)

    def __str__(self) -> str:
        if self.failed == self.runs:
            return f"{self.link}, {self.shown}"
        rate, real_rate, rates = self.mbps.texts()
        rtt, real_rtt, rtts = self.p95_ms.texts()
        return (
            f"{self.link}, {self.shown}: {real_rate} Mbit/s, simulated {rate} ({rates}); "
            f"p95 RTT {real_rtt} ms, simulated {rtt} ({rtts})"
        )


def compare(pairs: Sequence[tuple[SchemeScores, SchemeScores]]) -> list[WorldComparison]:
    """Compare what was measured on emulated links with the same sender's in the simulator."""
    found = []
    for real, model in pairs:
        worlds = model, real
        for k, link in enumerate(real.links):
            ran = real.ran[k]
            rate, rtt = (
                Compared(metric(key), *(defined_mean(one.figures[key][k][ran]) for one in worlds))
                for key in BOUNDS
            )
            failed = int((~ran).sum())
            found.append(WorldComparison(link, real.scheme, rate, rtt, len(ran), failed))
    return sorted(found, key=lambda one: one.link)
