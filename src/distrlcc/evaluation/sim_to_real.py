"""The same senders in the simulator and on emulated links: how far apart they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distrlcc.evaluation.scores import SchemeScores, defined_mean, shown

THROUGHPUT_BOUND, RTT_BOUND = 0.05, 0.10  # differences beyond these are marked


@dataclass(frozen=True)
class Compared:
    """A figure in both worlds: the mean over the runs that count, NaN if none does."""

    simulated: float
    emulated: float
    digits: int  # digits after the point as shown
    bound: float  # differences beyond this are marked

    @property
    def difference(self) -> float:
        """The emulator's figure over the simulator's, less 1."""
        return self.emulated / self.simulated - 1.0 if self.simulated else math.nan

    @property
    def far(self) -> bool:
        """Whether the two differ by more than the bound."""
        return abs(self.difference) > self.bound

    def texts(self) -> tuple[str, str, str]:
        """Return both figures and their difference as shown; dashes if undefined."""
        simulated, emulated = (
            f"{each:.{self.digits}f}" if math.isfinite(each) else "-"
            for each in (self.simulated, self.emulated)
        )
        difference = f"{self.difference:+.1%}" if math.isfinite(self.difference) else "-"
        return simulated, emulated, difference


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
        for k, link in enumerate(real.links):
            ran = real.ran[k]
            a, b = (
                {key: defined_mean(values[k][ran]) for key, values in one.figures.items()}
                for one in (model, real)
            )
            rate = Compared(a["throughput_mbps"], b["throughput_mbps"], 2, THROUGHPUT_BOUND)
            rtt = Compared(a["p95_rtt_ms"], b["p95_rtt_ms"], 1, RTT_BOUND)
            failed = int((~ran).sum())
            found.append(WorldComparison(link, real.scheme, rate, rtt, len(ran), failed))
    return sorted(found, key=lambda one: one.link)
