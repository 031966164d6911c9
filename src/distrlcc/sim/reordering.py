"""What a sender knows where packets overtake: `transport.recovery.Reordering`, compiled.

On a link that reorders, a packet's ACK is late with a probability, by a hash of its name, and those
of later packets overtake it. So a ring of ACKs is kept sorted by time (`insert`), and beside it
stands one record for each sequence number, in `scores`: when it was sent, and what became of it.
All other links never come here: there a gap is a loss.
"""

from __future__ import annotations

from typing import Any

from distrlcc.control.compiled import njit
from distrlcc.sim import layout as col
from distrlcc.sim.acks import loss_hash
from distrlcc.sim.layout import FOREVER
from distrlcc.transport.recovery import (
    GRANULARITY,
    LATE_FOR,
    MAX_RTO,
    MIN_RTO,
    MOST_DOUBLINGS,
    REMEMBERED,
)

LATE_FLOW = 1 << 23
"""Added to a flow's number where a hash says whether a packet is late, and not its loss."""
PACKET_THRESHOLD = 3

# One record of `scores`, int64 [SCORE].
SENT_AT = 0
FATE = 1  # IN_FLIGHT, ACKED, or when it was found lost
SCORE = 2
IN_FLIGHT, ACKED = 0, -1


@njit
def timeout(srtt: int, rttvar: int, backoff: int) -> Any:
    """Return the retransmission timeout, ns; see `RttEstimator.rto`."""
    base = (srtt >> 3) + max(rttvar, MIN_RTO)
    if backoff == 0:
        return base
    return min(base << min(backoff, MOST_DOUBLINGS), max(base, MAX_RTO))


@njit
def lateness(link: Any, number: int, seq: int) -> Any:
    """Return by how much a packet is late, ns."""
    if loss_hash(link[col.LOSS_SEED], number + LATE_FLOW, seq) < link[col.LATE_SHARE]:
        return link[col.LATE_BY]
    return 0


@njit
def insert(flow: Any, ring: Any, head: int, tail: int, ack_at: int) -> Any:
    """Make room in a flow's ring for an ACK before those that come later; return its record."""
    start, mask = flow[col.RING_START], flow[col.RING_MASK]
    place = tail
    while place > head:
        before = start + ((place - 1) & mask)
        if ring[before, col.R_ACK_TIME] <= ack_at:
            break
        to = start + (place & mask)
        for column in range(col.RECORD):
            ring[to, column] = ring[before, column]
        place -= 1
    return start + (place & mask)


@njit
def place_of(flow: Any, seq: int) -> Any:
    """Return the record of a sequence number."""
    return flow[col.RING_START] + (seq & flow[col.RING_MASK])


@njit
def send(flow: Any, scores: Any, seq: int, now: int) -> None:
    """Remember a packet that is sent now."""
    place = place_of(flow, seq)
    scores[place, SENT_AT] = now
    scores[place, FATE] = IN_FLIGHT


@njit
def receive(flow: Any, scores: Any, seq: int, rtt: int, now: int, backoff: int) -> Any:
    """Take a packet's ACK.

    Returns:
        Packets that it takes out of flight: 1, or 0 for one that had been found lost. And whether
        it shows that the newest recovery or timeout was spurious.
    """
    place = place_of(flow, seq)
    fate = scores[place, FATE]
    scores[place, FATE] = ACKED
    # Who was overtaken says how late it is.
    if seq > flow[col.LARGEST]:
        flow[col.LARGEST] = seq
        flow[col.LARGEST_RTT] = rtt
    else:
        flow[col.REORDERED] = 1
        late = max(rtt - flow[col.LARGEST_RTT], 0)
        if late >= flow[col.LATENESS] or now - flow[col.LATE_TIME] > LATE_FOR:
            flow[col.LATENESS] = late
            flow[col.LATE_TIME] = now
    # A timeout was spurious if a packet sent before it comes first, a recovery if each loss did.
    if fate > 0:
        flow[col.STEP_SPURIOUS] += 1
        if seq > flow[col.LARGEST_TOLD]:
            flow[col.UNREPORTED] -= 1
    undone = False
    if backoff > 0:
        undone = seq < flow[col.PROBE]
    elif fate > 0 and seq >= flow[col.RECOVERY_FROM]:
        flow[col.RECOVERY_LOST] -= 1
        if flow[col.RECOVERY_LOST] == 0:
            # It never was: the next loss of its packets begins another.
            flow[col.RECOVERY_UNTIL] = flow[col.RECOVERY_FROM]
            undone = flow[col.BEGINS] == 0  # else the scheme knows of no loss
            flow[col.BEGINS] = 0
    return (0 if fate > 0 else 1), undone


@njit
def find_lost(flow: Any, scores: Any, sent: int, least: int, base: int, now: int) -> Any:
    """Find lost packets of those below the largest acknowledged one; return how many.

    ``least`` is the least RTT and ``base`` the timeout without back-off, ns.
    """
    flow[col.LOSS_TIME] = FOREVER
    largest = flow[col.LARGEST]
    # Below this number a packet is lost at once, above it by time.
    surely = largest - PACKET_THRESHOLD + 1
    window = max(least >> 2, GRANULARITY)
    if flow[col.REORDERED] == 1:
        surely = 0
        window = max(window, flow[col.LATENESS] + (flow[col.LATENESS] >> 2))
    patience = flow[col.LARGEST_RTT] + min(window, base)
    lost = of_newest = of_next = 0
    seq = flow[col.LOWEST]
    while seq <= largest:
        place = place_of(flow, seq)
        if scores[place, FATE] == IN_FLIGHT:
            due = scores[place, SENT_AT] + patience
            if seq >= surely and now < due:
                flow[col.LOSS_TIME] = due
                break
            scores[place, FATE] = now
            lost += 1
            of_newest += seq >= flow[col.RECOVERY_FROM]
            of_next += seq >= flow[col.RECOVERY_UNTIL]
            flow[col.LARGEST_LOST] = seq
        seq += 1
    flow[col.LOWEST] = seq
    # A loss of a packet that was sent since the newest recovery began begins another.
    if of_next > 0:
        flow[col.RECOVERY_FROM] = flow[col.RECOVERY_UNTIL]
        flow[col.RECOVERY_UNTIL] = sent
        flow[col.RECOVERY_LOST] = of_next
        flow[col.BEGINS] = 1
    else:
        flow[col.RECOVERY_LOST] += of_newest
    flow[col.UNREPORTED] += lost
    # Forget what is settled. (No link is late by so much that one of these could come.)
    low = flow[col.LOW]
    while low < seq:
        fate = scores[place_of(flow, low), FATE]
        if fate > 0 and now - fate <= REMEMBERED:
            break
        low += 1
    flow[col.LOW] = low
    return lost
