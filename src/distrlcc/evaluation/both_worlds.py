"""The same senders as real packets and simulated: on each link, and many flows as ``iperf3 -P``."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from distrlcc.errors import DistrlccError, counted
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.emulated import RealFlow, emulation, run_emulation
from distrlcc.evaluation.fairness import fairness_of, jain_index, run_shared
from distrlcc.evaluation.flow_log import read_flow_log, score_log
from distrlcc.evaluation.runner import MBIT, WARMUP_S
from distrlcc.evaluation.scores import BUCKET_S, Metric, SchemeScores, defined_mean, metric, shown
from distrlcc.evaluation.summary import figure
from distrlcc.sim.scenario import Flow, Link, Scenario

LINK = Link(rate_mbps=96.0, delay_ms=10.0, queue_packets=300)
SECONDS = 10.0
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
        difference = f"{self.difference:+z.1%}" if math.isfinite(self.difference) else "-"
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
        void = f" ({self.failed} of {counted(self.runs, 'run')} void)"
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
            rate, rtt = (
                Compared(metric(m), *(defined_mean(w.figures[m][k][ran]) for w in (model, real)))
                for m in BOUNDS
            )
            failed = int((~ran).sum())
            found.append(WorldComparison(link, real.scheme, rate, rtt, len(ran), failed))
    return sorted(found, key=lambda one: one.link)


@dataclass(frozen=True)
class Together:
    """Figures of all flows together after the first second."""

    mbps: float
    mean_rtt_ms: float
    lost: float  # share of packets that the kernel's TCP sent again, or the simulator dropped
    jain: float  # Jain's index of the flows' throughput; NaN of a single one

    def texts(self) -> tuple[str, ...]:
        """Return the figures as shown; dashes if they are missing."""
        values = (self.mbps, self.mean_rtt_ms, 100.0 * self.lost, self.jain)
        return tuple(
            f"{value:.{digits}f}" if math.isfinite(value) else "-"
            for value, digits in zip(values, (1, 1, 2, 2), strict=True)
        )


@dataclass(frozen=True)
class ParallelFlows:
    """A sender's flows in both worlds."""

    sender: str
    flows: int
    emulated: Together
    simulated: Together | None  # none: the simulator has no such sender

    def to_json(self) -> dict[str, Any]:
        """Return the figures; None if they are missing."""
        found: dict[str, Any] = {"sender": self.sender, "flows": self.flows}
        for world, one in (("emulated", self.emulated), ("simulated", self.simulated)):
            if one is not None:
                found[world] = {name: figure(value) for name, value in asdict(one).items()}
        return found

    def __str__(self) -> str:
        said = f"{counted(self.flows, 'flow')} of {shown(self.sender)}"
        for world, one in ((": ", self.emulated), ("; simulated ", self.simulated)):
            if one is not None:
                mbps, rtt, lost, jain = one.texts()
                said += f"{world}{mbps} Mbit/s, mean RTT {rtt} ms, {lost}% lost"
                said += f", Jain {jain}" if self.flows > 1 else ""
        return said


def measure_parallel(
    contenders: Sequence[Contender],
    counts: Sequence[int],
    show: Callable[[str], None],
    retries: int,
) -> tuple[list[ParallelFlows], list[str]]:
    """Measure kernel senders as so many flows at once on `LINK`; return runs, and what failed."""
    found, failures = list[ParallelFlows](), list[str]()
    for count, contender in product(counts, contenders):
        flows = tuple(Flow("agent") for _ in range(count))
        scenario, reason = Scenario(f"{count} flows", LINK, flows, SECONDS), ""
        for _ in range(1 + retries):
            show(f"{contender.name}, {count} at once, {SECONDS:g} s{reason}")
            try:
                real, model = _emulated(scenario, contender), contender.simulated()
            except (DistrlccError, OSError, ValueError, LookupError) as error:  # torn logs
                reason = f" ({error})"
                continue
            simulated = None if model is None else _simulated(scenario, model)
            found.append(ParallelFlows(contender.name, count, real, simulated))
            break
        else:
            failures.append(f"{count} flows of {contender.name} at once failed:{reason}")
    return found, failures


def _emulated(scenario: Scenario, contender: Contender) -> Together:
    assert contender.is_kernel
    flow = RealFlow(1, contender, 0.0, scenario.duration_s, 0, count=len(scenario.flows))
    with TemporaryDirectory(prefix="distrlcc-") as folder:
        place = Path(folder)
        words = emulation(scenario, [flow], place, log=place / "up.log")
        run_emulation(words, scenario.duration_s)
        figures = score_log(read_flow_log(place / "up.log", scenario))
        sent = [_after_warmup(one) for one in json.loads(flow.figures(place).read_text())]
    acked, packets, again = np.array(sent).T
    return Together(
        mbps=figures["throughput_mbps"],
        mean_rtt_ms=figures["mean_rtt_ms"],
        lost=float(again.sum() / max(packets.sum(), 1.0)),
        jain=float(jain_index(acked)),
    )


def _after_warmup(flow: dict[str, Any]) -> list[float]:
    """Return the bytes acknowledged, the packets sent, and those sent again."""
    columns = {name: np.array(each, float) for name, each in flow["samples_columns"].items()}
    names = ("acked_bytes", "sent_packets", "retransmitted_packets")
    return [
        float(columns[name][-1] - np.interp(WARMUP_S, columns["time_s"], columns[name]))
        for name in names
    ]


def _simulated(scenario: Scenario, model: Contender) -> Together:
    (run,) = run_shared(model, [scenario])
    figures, warm = fairness_of(run), slice(round(WARMUP_S / BUCKET_S), None)
    acked = run.acked[:, warm].sum(axis=1)
    waits = run.queueing_s[:, warm].sum() / max(acked.sum(), 1.0)
    return Together(
        mbps=float(acked.sum() * MBIT / (scenario.duration_s - WARMUP_S)),
        mean_rtt_ms=1e3 * float(run.base_rtt_s.mean() + waits),
        lost=figures["excess_loss"],
        jain=float(jain_index(acked)),
    )
