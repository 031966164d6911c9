"""What a flow did on an emulated link, from the link's own log: the same for every sender.

The log says when each packet came, waited, left or was dropped; the RTT is that wait and the path's
delay both ways. What the sender's and the receiver's machine add is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distrlcc.errors import OutputError
from distrlcc.sim.replay import read_log
from distrlcc.sim.scenario import Link
from distrlcc.types import PACKET_BYTES, FloatArray

_MBIT = 8e-3  # of a byte per ms


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
    """The log's lines by kind; times in ms since the flow's first packet."""

    arrivals: FloatArray
    opportunities: FloatArray
    departures: FloatArray
    sizes: FloatArray
    waits: FloatArray
    """Of departures, ms."""
    dropped: float


def score_log(path: Path, link: Link, seconds: float, warmup: float = 1.0) -> LinkScores:
    """Score an uplink's log.

    Args:
        path: The log.
        link: What was emulated.
        seconds: How long the flow lasted, s.
        warmup: Its first seconds, which have a figure of their own, s.

    Raises:
        OutputError: No packet crossed the link.
    """
    begin, middle, end = 0.0, 1e3 * min(warmup, seconds / 2), 1e3 * seconds
    first = _events(path, begin, middle)
    events = _events(path, middle, end)
    service = 0.0
    if link.rate_mbps:  # as in the simulator: on a trace there is none
        service = PACKET_BYTES * _MBIT / link.rate_mbps
    delay = 2.0 * link.delay_ms
    base = delay + service
    # A packet that arrives in a millisecond leaves in a later one: half of one is the log's grain.
    queueing = np.maximum(events.waits - max(service, 1.0), 0.0)
    rtts = queueing + base
    excess = events.dropped / max(len(events.arrivals), 1)
    loss = excess + (1.0 - excess) * link.loss
    used = events.sizes.sum() / max(len(events.opportunities) * PACKET_BYTES, 1)
    mean_rtt = float(rtts.mean())
    return LinkScores(
        throughput_mbps=float(events.sizes.sum()) * (1 - link.loss) * _MBIT / (end - middle),
        utilisation=float(used),
        first_second_utilisation=float(
            first.sizes.sum() / max(len(first.opportunities) * PACKET_BYTES, 1)
        ),
        mean_queueing_delay_ms=float(queueing.mean()),
        p95_queueing_delay_ms=float(np.percentile(queueing, 95.0)),
        mean_rtt_ms=mean_rtt,
        p95_rtt_ms=float(np.percentile(rtts, 95.0)),
        base_rtt_ms=base,
        queueing_delay_rtt=float(queueing.mean()) / base,
        loss=loss,
        excess_loss=excess,
        power=float(used) * base / mean_rtt,
    )


def _events(path: Path, begin: float, end: float) -> _Events:
    """Return what happened between two times, ms since the first arrival."""
    events = read_log(path).events
    arrivals = [time for time, kind, _, _ in events if kind == "+"]
    if not arrivals:
        raise OutputError(f"{path}: no packet crossed the link; did the sender start?")
    start = arrivals[0]
    window = [e for e in events if begin <= e[0] - start < end]
    gone = [e for e in window if e[1] == "-"]
    if not gone:
        raise OutputError(f"{path}: no packet left the link from {begin:.0f} to {end:.0f} ms")
    return _Events(
        arrivals=np.array([t - start for t, kind, _, _ in window if kind == "+"], float),
        opportunities=np.array([t - start for t, kind, _, _ in window if kind == "#"], float),
        departures=np.array([e[0] - start for e in gone], float),
        sizes=np.array([e[2] for e in gone], float),
        waits=np.array([e[3] for e in gone], float),
        dropped=float(sum(count for _, kind, count, _ in window if kind == "d")),
    )
