"""What a flow did on an emulated link, from the link's own log: the same for every sender.

Windows and definitions are `distrlcc.evaluate.runner`'s: beside other flows utilisation is the
link's, all else the flow's own, whose packets stand in a log of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from distrlcc.evaluate.flow_log import MBIT_PER_BYTE_MS, FlowLog
from distrlcc.sim.link import Log
from distrlcc.sim.reference import capacity
from distrlcc.sim.scenario import Link
from distrlcc.types import NANOSECONDS, PACKET_BYTES


@dataclass(frozen=True)
class LinkScores:
    """A flow's figures, as `distrlcc.evaluate.scores` defines them."""

    throughput_mbps: float
    utilisation: float
    first_second_utilisation: float
    mean_queueing_delay_ms: float
    p95_queueing_delay_ms: float
    mean_rtt_ms: float
    p95_rtt_ms: float
    base_rtt_ms: float
    queueing_delay_rtt: float
    loss: float
    excess_loss: float
    power: float


@dataclass(frozen=True)
class _Window:
    """Times of the log, ms: from the first on, before the second."""

    begin: float
    end: float

    def events(self, log: Log, kind: str) -> list[tuple[int, str, int, int]]:
        """Return the log's lines of a kind."""
        return [each for each in log.events if each[1] == kind and self.begin <= each[0] < self.end]

    def offered(self, log: Log, link: Link, zero: float) -> float:
        """Return the bytes that could leave; what came after the log's end is the link's.

        Args:
            log: Of all flows.
            link: The scenario's.
            zero: When that began, ms.
        """
        last = max(log.events[-1][0] + 1, self.begin)
        bits = 0.0
        if last < self.end:
            after, end = (round(1e6 * (time - zero)) for time in (last, self.end))
            bits = capacity(link, after, end) / NANOSECONDS
        return max(len(self.events(log, "#")) * PACKET_BYTES + bits / 8.0, 1.0)

    def carried(self, log: Log) -> float:
        """Return the bytes that left."""
        return float(sum(size for _, _, size, _ in self.events(log, "-")))


def score_log(log: FlowLog) -> LinkScores:
    """Score a flow by its log, from its first second's end on."""
    link, zero = log.scenario.link, log.zero_ms
    first, window = _Window(log.begin_ms, log.warm_ms), _Window(log.warm_ms, log.end_ms)
    gone = log.departures(window.begin, window.end)
    queueing, base = gone.queueing_ms, gone.base_ms
    dropped = sum(count for _, _, count, _ in window.events(log.own, "d"))
    excess = dropped / max(len(window.events(log.own, "+")), 1)
    random_loss = float(gone.lost.mean()) if len(gone.lost) else 0.0
    arrived = float(gone.bytes @ (1.0 - gone.lost))
    offered = window.offered(log.whole, link, zero)
    share = used = window.carried(log.whole) / offered
    if log.own is not log.whole:  # the share of what was offered that the flow's receiver got
        share = arrived / offered
    found = len(queueing) > 0  # else nothing was delivered, and there is no delay
    mean_base = float(base.mean()) if found else math.nan
    mean, mean_rtt = (float(x.mean()) if found else math.nan for x in (queueing, queueing + base))
    p95, p95_rtt = (
        float(np.percentile(x, 95.0)) if found else math.nan for x in (queueing, queueing + base)
    )
    return LinkScores(
        throughput_mbps=arrived * MBIT_PER_BYTE_MS / (window.end - window.begin),
        utilisation=used,
        first_second_utilisation=first.carried(log.whole) / first.offered(log.whole, link, zero),
        mean_queueing_delay_ms=mean,
        p95_queueing_delay_ms=p95,
        mean_rtt_ms=mean_rtt,
        p95_rtt_ms=p95_rtt,
        base_rtt_ms=mean_base,
        queueing_delay_rtt=mean / mean_base if mean_base else math.nan,
        loss=excess + (1.0 - excess) * random_loss,
        excess_loss=excess,
        power=share * mean_base / mean_rtt if found and mean_rtt else 0.0,
    )
