"""A sender's record where packets overtake: `transport.recovery.Reordering`, compiled.

On a link that reorders, a hash of a packet's name says whether its ACK is late; ACKs of later
packets overtake it. So a flow has a second ring, of late ACKs, in `scores`; `settle` keeps the
next ACK of both at the first ring's head. `scores` also holds a record for each sequence number:
when it was sent, and its fate. All other links never come here: there a gap is a loss.
"""

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
    NEVER_LATE,
    REMEMBERED,
)

LATE_FLOW = 1 << 23  # added to a flow's number where a hash says whether a packet is late
PACKET_THRESHOLD = 3

# One record of `scores`, int64 [SCORE].
SENT_AT = 0
FATE = 1  # IN_FLIGHT, ACKED, or when it was found lost
LATE = 2  # from here on a late packet's record, as in the ring of ACKs
SCORE = LATE + col.RECORD
IN_FLIGHT, ACKED = 0, -1


@njit
def timeout(srtt: int, rttvar: int, backoff: int) -> Any:
    """Return the retransmission timeout, ns; see `RttEstimator.rto`."""
    base = (srtt >> 3) + max(rttvar, MIN_RTO)
    if backoff == 0:
        return base
    return min(base << min(backoff, MOST_DOUBLINGS), max(base, MAX_RTO))


@njit
def bring(flow: Any, ring: Any, scores: Any, head: int, tail: int) -> Any:
    """Put a late ACK at the head of a flow's ring if it comes next; return the head."""
    start, mask = flow[col.RING_START], flow[col.RING_MASK]
    if flow[col.LATE_HEAD] == flow[col.LATE_TAIL]:
        return head
    late = scores[start + (flow[col.LATE_HEAD] & mask), LATE:]
    if head < tail:
        first = ring[start + (head & mask)]
        ahead = late[col.R_ACK_TIME] - first[col.R_ACK_TIME]
        # A tie goes to the one that was sent before.
        if ahead > 0 or (ahead == 0 and late[col.R_COUNTS] > first[col.R_COUNTS]):
            return head
    for column in range(col.RECORD):
        ring[start + ((head - 1) & mask), column] = late[column]
    flow[col.LATE_HEAD] += 1
    return head - 1


@njit
def settle(
    link: Any, flow: Any, ring: Any, scores: Any, head: int, tail: int, number: int, seq: int
) -> Any:
    """Put the newest ACK of a flow's ring where it belongs; return head, tail and the ACK's time.

    ``number`` and ``seq`` are the packet's, which may be late.
    """
    start, mask = flow[col.RING_START], flow[col.RING_MASK]
    tail -= 1
    newest = ring[start + (tail & mask)]
    ack_at = newest[col.R_ACK_TIME]
    if loss_hash(link[col.LOSS_SEED], number + LATE_FLOW, seq) < link[col.LATE_SHARE]:
        ack_at += link[col.LATE_BY]
        newest[col.R_ACK_TIME] = ack_at
        for column in range(col.RECORD):
            scores[start + (flow[col.LATE_TAIL] & mask), LATE + column] = newest[column]
        flow[col.LATE_TAIL] += 1
    else:
        # Only a late one that was brought before can come after it.
        if head < tail:
            last = ring[start + ((tail - 1) & mask)]
            if last[col.R_ACK_TIME] > newest[col.R_ACK_TIME]:
                for column in range(col.RECORD):
                    last[column], newest[column] = newest[column], last[column]
        tail += 1
    return bring(flow, ring, scores, head, tail), tail, ack_at


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
    """Take an ACK; return how many packets left flight, and if a recovery was spurious."""
    place = place_of(flow, seq)
    fate = scores[place, FATE]
    scores[place, FATE] = ACKED
    # A packet that was overtaken shows how late it came.
    age = now - flow[col.LATE_SINCE]
    if age > LATE_FOR:
        flow[col.LATE_BEFORE] = flow[col.LATENESS] if age <= 2 * LATE_FOR else NEVER_LATE
        flow[col.LATENESS] = NEVER_LATE
        flow[col.LATE_SINCE] = now
    if seq > flow[col.LARGEST]:
        flow[col.LARGEST] = seq
        flow[col.LARGEST_RTT] = rtt
    else:
        flow[col.LATENESS] = max(flow[col.LATENESS], rtt - flow[col.LARGEST_RTT], 0)
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
def find_lost(flow: Any, scores: Any, sent: int, least: int, now: int) -> Any:
    """Find lost packets below the largest acknowledged; return how many (``least``: RTT, ns)."""
    flow[col.LOSS_TIME] = FOREVER
    largest = flow[col.LARGEST]
    # Below this number a packet is lost at once, above it by time.
    late = max(flow[col.LATENESS], flow[col.LATE_BEFORE])
    surely = largest - PACKET_THRESHOLD + 1 if late == NEVER_LATE else 0
    window = min(max(late + (late >> 2), least >> 2, GRANULARITY), REMEMBERED)
    patience = flow[col.LARGEST_RTT] + window
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
