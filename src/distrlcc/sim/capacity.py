"""A link's capacity: opportunities, integrals of its rate, and the window that fills it."""

from typing import Any

import numpy as np

from distrlcc.control.compiled import njit
from distrlcc.sim import layout as col
from distrlcc.types import NANOSECONDS, PACKET_BYTES

PACKET_BITS = PACKET_BYTES * 8
PACKET_WORK = PACKET_BITS * NANOSECONDS


@njit
def opportunities_until(link: Any, traces: Any, time: int) -> Any:
    """Count a trace's opportunities from its own time zero through ``time`` of the episode."""
    period, start = link[col.TRACE_PERIOD], link[col.TRACE_START]
    shifted = time + link[col.TRACE_SHIFT]
    wraps = shifted // period
    times = traces[start : start + link[col.TRACE_LENGTH]]
    return wraps * len(times) + np.searchsorted(times, shifted - wraps * period, "right")


@njit
def row_at(link: Any, times: Any, time: int) -> Any:
    """Return the schedule's row in force at a time."""
    row, end = 0, link[col.SEGMENTS]
    while end - row > 1:
        middle = (row + end) // 2
        if times[middle] <= time:
            row = middle
        else:
            end = middle
    return row


@njit
def carried(link: Any, schedule: Any, traces: Any, start: int, end: int) -> Any:
    """Return the packets that a link can carry in (start, end]; before 0 it was as at 0.

    A ``schedule`` is a link's rows of times, rates, round trips and losses; see `kernel.advance`.
    """
    if link[col.IS_TRACE] == 1:
        first = opportunities_until(link, traces, start)
        return float(opportunities_until(link, traces, end) - first)
    times, rates, _, _ = schedule
    row, total = row_at(link, times, start), 0.0
    while start < end:
        until = end if row + 1 == link[col.SEGMENTS] else min(end, times[row + 1])
        total += float(rates[row]) * float(until - start)
        start, row = until, row + 1
    return total / float(PACKET_WORK)


@njit
def best_window(link: Any, schedule: Any, traces: Any, extra: int, time: int, step: int) -> Any:
    """Return the window that fills the link from ``time`` on with about one packet queued.

    It departs within a round trip, with one step of foresight, or passes a policer.
    """
    end = time + step
    times, _, rtts, _ = schedule
    begin = end - rtts[row_at(link, times, time)] - extra
    packets = carried(link, schedule, traces, begin, end)
    if link[col.POLICER_RATE] > 0:
        packets = min(packets, float(link[col.POLICER_RATE]) * float(end - begin) / PACKET_WORK)
    return packets + 1.0


@njit
def senders(flows: Any, first: int, last: int, begin: int, end: int) -> Any:
    """Count the flows of one link that may send within [begin, end); at least 1."""
    count = 0
    for f in range(first, last):
        if max(flows[f, col.START], begin) < min(flows[f, col.STOP], end):
            count += 1
    return max(count, 1)
