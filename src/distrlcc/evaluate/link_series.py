"""A flow over time on an emulated link: by the link's log, and as its sender says."""

from __future__ import annotations

import numpy as np

from distrlcc.evaluate.buckets import bucket_edges
from distrlcc.evaluate.flow_log import MBIT_PER_BYTE_MS, FlowLog
from distrlcc.evaluate.real_contender import RealContender
from distrlcc.evaluate.scores import Series
from distrlcc.evaluate.sender_log import SenderLog
from distrlcc.sim.reference import capacity
from distrlcc.types import NANOSECONDS, PACKET_BYTES, FloatArray


def link_series(log: FlowLog, sender: SenderLog, contender: RealContender) -> Series:
    """Return a flow's series from its start on, as `distrlcc.evaluate.recorder` has simulated ones.

    Args:
        log: What the link saw of it.
        sender: What it says of itself.
        contender: Who sends.
    """
    edges_s = bucket_edges((log.end_ms - log.begin_ms) / 1e3)
    # The log's grain is the ms, and between two of them an opportunity is in either bucket.
    edges_ms = np.round(log.begin_ms + 1e3 * edges_s)
    lengths_ms = np.maximum(np.diff(edges_ms), 1.0)
    gone = log.departures(log.begin_ms, log.end_ms)

    def per_bucket(values: FloatArray) -> FloatArray:
        return np.histogram(gone.time_ms, edges_ms, weights=values)[0]

    packets = per_bucket(np.ones(len(gone.time_ms)))
    delays = per_bucket(gone.queueing_ms)
    # Little's law: packets that wait are their rate times their wait.
    left = [e for e in log.whole.events if e[1] == "-"]
    times, waits = (np.array([e[k] for e in left], float) for k in (0, 3))
    return Series(
        scheme=contender.name,
        learned=contender.learned,
        link=log.scenario.name,
        time_s=(edges_s[1:] + edges_s[:-1]) / 2,
        capacity_mbps=_offered_bytes(log, edges_ms) * MBIT_PER_BYTE_MS / lengths_ms,
        rate_mbps=per_bucket(gone.bytes * (1.0 - gone.lost)) * MBIT_PER_BYTE_MS / lengths_ms,
        queueing_delay_ms=np.where(packets > 0, delays / np.maximum(packets, 1), np.nan),
        queue_packets=np.histogram(times, edges_ms, weights=waits)[0] / lengths_ms,
        sender=sender.over(edges_s),
    )


def _offered_bytes(log: FlowLog, edges_ms: FloatArray) -> FloatArray:
    """Return what could leave in each bucket; what came after the log's end is the link's."""
    chances = np.array([event[0] for event in log.whole.events if event[1] == "#"], float)
    offered = np.histogram(chances, edges_ms)[0] * float(PACKET_BYTES)
    last = log.whole.events[-1][0] + 1
    for place in np.flatnonzero(edges_ms[1:] > last):
        begin, end = (
            round(1e6 * (time - log.zero_ms))
            for time in (max(float(edges_ms[place]), last), float(edges_ms[place + 1]))
        )
        offered[place] += capacity(log.scenario.link, begin, end) / NANOSECONDS / 8.0
    return offered
