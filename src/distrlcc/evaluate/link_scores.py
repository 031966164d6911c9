"""What a flow did on an emulated link, from the link's own log: the same for every sender.

The log says when each packet came, waited, left or was dropped; the RTT is that wait and the path's
delay both ways. What the sender's and the receiver's machine add is not in it.

Windows and definitions are `distrlcc.evaluate.runner`'s: beside other flows utilisation is the
link's, all else the flow's own, whose packets stand in a log of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distrlcc.errors import OutputError
from distrlcc.sim.reference import capacity
from distrlcc.sim.replay import Log, read_log
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.types import NANOSECONDS, PACKET_BYTES, FloatArray

_MBIT = 8e-3  # of a byte per ms
_FULL_BYTES = 1000


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


def score_log(
    path: Path, scenario: Scenario, *, own: Path | None = None, warmup: float = 1.0
) -> LinkScores:
    """Score the first flow by an uplink's log.

    Args:
        path: The log. Its first full packet is the first of the flow that starts first.
        scenario: What was emulated.
        own: The log of the first flow's packets, where the link has other flows.
        warmup: The flow's first seconds, which have a figure of their own, s.

    Raises:
        OutputError: No full packet crossed the link, or none of the flow.
        TraceError: A log cannot be read.
    """
    whole = read_log(path)
    # The scenario's time zero, which lies before the link's if no flow starts at once.
    zero = _first_full(whole, path) - 1e3 * min(flow.start_s for flow in scenario.flows)
    log = whole
    if own is not None:
        log = read_log(own)
        _first_full(log, own)
    link, end = scenario.link, 1e3 * scenario.duration_s
    begin = min(1e3 * scenario.flows[0].start_s, end / 2)
    middle = begin + min(1e3 * warmup, (end - begin) / 2)
    first, window = _Window(zero + begin, zero + middle), _Window(zero + middle, zero + end)
    gone = window.events(log, "-")
    waits, times = np.array([wait for *_, wait in gone]), np.array([time for time, *_ in gone])
    path_ms, service_ms = _without_queue(link, times - zero)
    # A packet that arrives in a millisecond leaves in a later one: half of one is the log's grain.
    queueing = np.maximum(waits - np.maximum(service_ms, 1.0), 0.0)
    base = path_ms + service_ms
    dropped = sum(count for _, _, count, _ in window.events(log, "d"))
    excess = dropped / max(len(window.events(log, "+")), 1)
    # Lost at random after the bottleneck, which the log does not show: what is to be expected.
    lost = _loss(link, times - zero)
    random_loss = float(lost.mean()) if len(lost) else 0.0
    arrived = float(np.dot([size for _, _, size, _ in gone], 1.0 - lost))
    offered = window.offered(whole, link, zero)
    share = used = window.carried(whole) / offered
    if own is not None:  # the share of what was offered that the flow's receiver got
        share = arrived / offered
    found = len(gone) > 0  # else nothing was delivered, and there is no delay
    mean_base = float(base.mean()) if found else math.nan
    mean, mean_rtt = (float(x.mean()) if found else math.nan for x in (queueing, queueing + base))
    p95, p95_rtt = (
        float(np.percentile(x, 95.0)) if found else math.nan for x in (queueing, queueing + base)
    )
    return LinkScores(
        throughput_mbps=arrived * _MBIT / (end - middle),
        utilisation=used,
        first_second_utilisation=first.carried(whole) / first.offered(whole, link, zero),
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


def _first_full(log: Log, path: Path) -> int:
    """Return when the first full packet came, ms; what shakes hands is smaller."""
    for time, kind, size, _ in log.events:
        if kind == "+" and size >= _FULL_BYTES:
            return time
    whose = "" if log.port is None else f" to port {log.port}"
    raise OutputError(f"{path}: no full packet{whose} crossed the link; did the sender start?")


def _without_queue(link: Link, times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the delay both ways and the time in service of packets that left then, ms."""
    delay, service = 2.0 * link.delay_ms, 0.0
    if link.rate_mbps:  # as in the simulator: on a trace there is none
        service = PACKET_BYTES * _MBIT / link.rate_mbps
    begins, delays, services = [-math.inf], [delay], [service]
    for change in link.changes:
        if change.delay_ms is not None:
            delay = 2.0 * change.delay_ms
        if change.rate_mbps:  # nothing leaves in an outage
            service = PACKET_BYTES * _MBIT / change.rate_mbps
        begins.append(1e3 * change.at_s)
        delays.append(delay)
        services.append(service)
    places = np.searchsorted(begins, times, side="right") - 1
    return np.array(delays)[places], np.array(services)[places]


def _loss(link: Link, times: FloatArray) -> FloatArray:
    """Return the probability that packets which left then were lost at random."""
    begins, losses = [-math.inf], [link.loss]
    for change in link.changes:
        if change.loss is not None:
            begins.append(1e3 * change.at_s)
            losses.append(change.loss)
    return np.array(losses)[np.searchsorted(begins, times, side="right") - 1]
