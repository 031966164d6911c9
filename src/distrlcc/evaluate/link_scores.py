"""What a flow did on an emulated link, from the link's own log: the same for every sender.

The log says when each packet came, waited, left or was dropped; the RTT is that wait and the path's
delay both ways. What the sender's and the receiver's machine add is not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distrlcc.errors import OutputError
from distrlcc.sim.replay import Log, read_log
from distrlcc.sim.scenario import Link
from distrlcc.types import PACKET_BYTES, FloatArray

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
class _Events:
    """A window of the log, by kinds of lines."""

    arrivals: int
    opportunities: int
    bytes: float
    """That left."""
    waits: FloatArray
    """Of the packets that left, ms."""
    dropped: int


def score_log(path: Path, link: Link, seconds: float, warmup: float = 1.0) -> LinkScores:
    """Score an uplink's log.

    Args:
        path: The log.
        link: What was emulated.
        seconds: How long the flow lasted, s.
        warmup: Its first seconds, which have a figure of their own, s.

    Raises:
        OutputError: No full packet crossed the link.
    """
    log = read_log(path)
    start = _start(log, path)
    middle, end = 1e3 * min(warmup, seconds / 2), 1e3 * seconds
    first, events = _events(log, start, start + middle), _events(log, start + middle, start + end)
    service = 0.0
    if link.rate_mbps:  # as in the simulator: on a trace there is none
        service = PACKET_BYTES * _MBIT / link.rate_mbps
    delay = 2.0 * link.delay_ms
    base = delay + service
    # A packet that arrives in a millisecond leaves in a later one: half of one is the log's grain.
    queueing = np.maximum(events.waits - max(service, 1.0), 0.0)
    excess = events.dropped / max(events.arrivals, 1)
    random_loss = _mean_loss(link, 1e-3 * middle, 1e-3 * end)
    used = events.bytes / max(events.opportunities * PACKET_BYTES, 1)
    mean, p95 = math.nan, math.nan
    if len(queueing):  # else nothing was delivered, and there is no delay
        mean, p95 = float(queueing.mean()), float(np.percentile(queueing, 95.0))
    return LinkScores(
        throughput_mbps=events.bytes * (1.0 - random_loss) * _MBIT / (end - middle),
        utilisation=used,
        first_second_utilisation=first.bytes / max(first.opportunities * PACKET_BYTES, 1),
        mean_queueing_delay_ms=mean,
        p95_queueing_delay_ms=p95,
        mean_rtt_ms=mean + base,
        p95_rtt_ms=p95 + base,
        base_rtt_ms=base,
        queueing_delay_rtt=mean / base,
        loss=excess + (1.0 - excess) * random_loss,
        excess_loss=excess,
        power=used * base / (mean + base) if len(queueing) else 0.0,
    )


def _start(log: Log, path: Path) -> int:
    """Return when the flow's first full packet came, ms; what shakes hands is smaller."""
    for time, kind, size, _ in log.events:
        if kind == "+" and size >= _FULL_BYTES:
            return time
    raise OutputError(f"{path}: no full packet crossed the link; did the sender start?")


def _mean_loss(link: Link, begin: float, end: float) -> float:
    """Return the link's random loss between two times, s, over its changes."""
    loss, since, total = link.loss, begin, 0.0
    for change in link.changes:
        if change.loss is not None and change.at_s < end:
            at = max(change.at_s, begin)
            total += loss * (at - since)
            loss, since = change.loss, at
    return (total + loss * (end - since)) / (end - begin)


def _events(log: Log, begin: float, end: float) -> _Events:
    """Return what happened between two times, ms."""
    window = [event for event in log.events if begin <= event[0] < end]
    gone = [event for event in window if event[1] == "-"]
    return _Events(
        arrivals=sum(kind == "+" for _, kind, _, _ in window),
        opportunities=sum(kind == "#" for _, kind, _, _ in window),
        bytes=float(sum(size for _, _, size, _ in gone)),
        waits=np.array([wait for _, _, _, wait in gone], float),
        dropped=sum(count for _, kind, count, _ in window if kind == "d"),
    )
