"""CoDel's and PIE's rules, once, for the emulator's queues and for the compiled simulator.

A packet that the rule would drop is marked instead (RFC 3168) if its sender takes marks and the
queue gives them. Callers say both as ``capable``.

A rule's parameters and state are one row of numbers: a list where `distrlcc.sim.queues` calls it
for each packet, a row of float64 where `distrlcc.sim.live_queue` compiles it. Times are whole
numbers in any unit, below 2^53.
"""

import math
from typing import Any

from distrlcc.types import PACKET_BYTES

COLUMNS = 8  # length of a row

PASS, MARK, DROP = range(3)  # what becomes of a packet: it goes on, goes on with a mark, or is lost

# CoDel: parameters, then state, which begins as zeros.
TARGET = 0
INTERVAL = 1
FIRST_ABOVE = 2  # when waits will have been above the target for an interval; 0: they are below
DROPPING = 3
DROP_NEXT = 4
COUNT = 5  # drops since it began to drop
LAST_COUNT = 6
DUE = 7  # 1: the packet just dropped has not moved DROP_NEXT yet

# PIE: parameters, then state.
REFERENCE = 0
MAX_BURST = 1
UPDATE = 2  # time between two updates of the probability
SECOND = 3  # the RFC's gains are per second
BURST = 4  # how long nothing is dropped yet
UPDATED = 5
OLD_DELAY = 6
PROBABILITY = 7

_UPDATE_MS = 15
_DIVISORS = (0.1, 2.0), (1e-2, 8.0), (1e-3, 32.0), (1e-4, 128.0), (1e-5, 512.0), (1e-6, 2048.0)
"""The lower the probability, the smaller its steps: below so much they are divided by so much."""
_MARKS_BELOW = 0.1  # probability from which PIE drops capable packets too (RFC 8033, section 5.1)


def codel_row(target: int, interval: int) -> list[float]:
    """Return CoDel's row at the beginning."""
    return [target, interval, 0, 0, 0, 0, 0, 0]


def pie_row(reference: int, max_burst: int, unit: int) -> list[float]:
    """Return PIE's row at time zero; ``unit`` is one millisecond in the unit of times."""
    return [reference, max_burst, _UPDATE_MS * unit, 1000 * unit, max_burst, 0, 0, 0.0]


def codel_fate(row: Any, now: int, arrival: int, backlog: int, capable: bool) -> int:
    """Return what CoDel does with a packet taken from the queue (RFC 8289, section 5.5 f.).

    An empty queue counts as a packet that arrives now; ``backlog`` are the bytes left behind.
    """
    # Has the wait been above the target for an interval?
    may_drop = False
    if now - arrival < row[TARGET] or backlog <= PACKET_BYTES:
        row[FIRST_ABOVE] = 0
    elif row[FIRST_ABOVE] == 0:
        row[FIRST_ABOVE] = now + row[INTERVAL]
    else:
        may_drop = now >= row[FIRST_ABOVE]
    # The control law moves the next drop if the packet after a dropped one may be dropped too.
    if row[DUE] == 1:
        row[DUE] = 0
        if may_drop:
            row[DROP_NEXT] += math.floor(row[INTERVAL] / math.sqrt(row[COUNT]))
    if not may_drop:
        row[DROPPING] = 0
        return PASS
    if row[DROPPING] == 1:
        if now < row[DROP_NEXT]:
            return PASS
        row[COUNT] += 1
        if capable:
            row[DROP_NEXT] += math.floor(row[INTERVAL] / math.sqrt(row[COUNT]))
            return MARK
        row[DUE] = 1
        return DROP
    # A queue that was over the target a moment ago goes on at the rate it had reached.
    row[DROPPING] = 1
    delta = row[COUNT] - row[LAST_COUNT]
    recently = now - row[DROP_NEXT] < 16 * row[INTERVAL]
    row[COUNT] = delta if delta > 1 and recently else 1
    row[LAST_COUNT] = row[COUNT]
    row[DROP_NEXT] = now + math.floor(row[INTERVAL] / math.sqrt(row[COUNT]))
    return MARK if capable else DROP


def pie_catch_up(row: Any, now: int, oldest: float) -> None:
    """Make the updates that a timer would have made (RFC 8033, appendix A).

    The queue was as it is since the last one; ``oldest`` is its oldest packet's arrival, infinite
    if it is empty. That packet's age is the waiting time, which the RFC allows.
    """
    half = row[REFERENCE] / 2
    while now - row[UPDATED] >= row[UPDATE]:
        row[UPDATED] += row[UPDATE]
        delay, old_delay = max(row[UPDATED] - oldest, 0), row[OLD_DELAY]
        probability = row[PROBABILITY]
        change = 0.125 * (delay - row[REFERENCE]) / row[SECOND]
        change += 1.25 * (delay - old_delay) / row[SECOND]
        divisor = 1.0
        for most, smaller in _DIVISORS:
            if probability < most:
                divisor = smaller
        if delay == 0 and old_delay == 0:
            probability *= 0.98
        row[PROBABILITY] = min(max(probability + change / divisor, 0.0), 1.0)
        # Quiet brings the burst allowance back.
        row[BURST] = max(row[BURST] - row[UPDATE], 0)
        if row[PROBABILITY] == 0.0 and delay < half and old_delay < half:
            row[BURST] = row[MAX_BURST]
        row[OLD_DELAY] = delay


def pie_chance(row: Any, backlog: int) -> Any:
    """Return the probability with which PIE picks an arrival now; ``backlog`` is in bytes."""
    calm = row[OLD_DELAY] < row[REFERENCE] / 2 and row[PROBABILITY] < 0.2
    if row[BURST] > 0 or calm or backlog <= 2 * PACKET_BYTES:
        return 0.0
    return row[PROBABILITY]


def pie_fate(chance: float, lot: float, capable: bool) -> int:
    """Return what PIE does with an arrival that drew a lot in [0, 1) against its chance."""
    if lot >= chance:
        return PASS
    return MARK if capable and chance < _MARKS_BELOW else DROP
