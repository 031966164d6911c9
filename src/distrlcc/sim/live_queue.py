"""Compiled links whose queue is simulated event by event, since a packet's fate comes late there.

Such a link has jitter before its queue, a policer, CoDel or PIE; all others never come here. A
packet enters the hop before the queue (`enter`), reaches the queue in the order of sending, and
leaves it. `serve` lets these events happen in the order of their times, at one time a departure
first. One ring for each link holds its packets: first those in the queue, then those in the hop.
"""

import math
from typing import Any

from distrlcc.control.compiled import njit
from distrlcc.sim import aqm
from distrlcc.sim import layout as col
from distrlcc.sim.acks import acknowledge, loss_hash, wait
from distrlcc.sim.capacity import PACKET_WORK, row_at
from distrlcc.sim.layout import FOREVER
from distrlcc.sim.reordering import settle
from distrlcc.types import PACKET_BYTES

HOP_FLOW = 1 << 21
LOTTERY_FLOW = 1 << 22
"""Added to a flow's number where a hash is a packet's jitter before the queue, or its lot of PIE's
lottery, and not its loss."""

codel_fate = njit(aqm.codel_fate)
pie_catch_up = njit(aqm.pie_catch_up)
pie_chance = njit(aqm.pie_chance)
pie_fate = njit(aqm.pie_fate)


@njit
def place(link: Any, count: int) -> Any:
    """Return where in the rings the link's packet of a number stands."""
    return link[col.QUEUE_RING_START] + (count & link[col.QUEUE_MASK]) * col.QUEUED


@njit
def is_full(link: Any) -> Any:
    """Tell whether a link's ring has no room for another packet."""
    return link[col.HOP_TAIL] - link[col.QUEUE_HEAD] > link[col.QUEUE_MASK]


@njit
def enter(link: Any, queues: Any, number: int, counts: int, now: int, log_row: int) -> Any:
    """Put a packet that is sent now into the hop before the queue, which keeps the order.

    ``counts`` are as `R_COUNTS`. Returns the packet's place, for what its flow knows of it.
    """
    kind, scale, seed = link[col.HOP_JITTER_KIND], link[col.HOP_JITTER], link[col.LOSS_SEED]
    late = now + wait(kind, scale, seed, number + HOP_FLOW, counts >> 32, now)
    arrival = max(link[col.HOP_ARRIVAL], late)
    link[col.HOP_ARRIVAL] = arrival
    slot = place(link, link[col.HOP_TAIL])
    link[col.HOP_TAIL] += 1
    queues[slot + col.Q_FLOW] = number
    queues[slot + col.Q_SEND_TIME] = now
    queues[slot + col.Q_ARRIVAL] = arrival
    queues[slot + col.Q_COUNTS] = counts
    queues[slot + col.Q_LOG] = log_row
    return slot


@njit
def opportunity(link: Any, traces: Any) -> Any:
    """Return the time of a trace link's next opportunity."""
    return link[col.CURSOR_BASE] + traces[link[col.TRACE_START] + link[col.CURSOR_ROW]]


@njit
def skip_opportunity(link: Any) -> None:
    """Go on to a trace's next opportunity."""
    link[col.CURSOR_ROW] += 1
    if link[col.CURSOR_ROW] == link[col.TRACE_LENGTH]:
        link[col.CURSOR_ROW] = 0
        link[col.CURSOR_BASE] += link[col.TRACE_PERIOD]


@njit
def police(link: Any, now: int) -> Any:
    """Tell whether the policer's bucket holds a packet, and take it out."""
    rate = link[col.POLICER_RATE]
    if rate == 0:
        return True
    # The bucket fills up to the burst; the product would overflow after a long rest.
    elapsed = now - link[col.POLICER_TIME]
    link[col.POLICER_TIME] = now
    missing = link[col.POLICER_BURST] - link[col.POLICER_TOKENS]
    if elapsed > missing // rate:
        link[col.POLICER_TOKENS] = link[col.POLICER_BURST]
    else:
        link[col.POLICER_TOKENS] += rate * elapsed
    if link[col.POLICER_TOKENS] < PACKET_WORK:
        return False
    link[col.POLICER_TOKENS] -= PACKET_WORK
    return True


@njit
def admit(link: Any, queues: Any, rule: Any, slot: int, now: int) -> Any:
    """Tell whether policer and queue take the packet at ``slot`` of the rings, that arrives now."""
    if not police(link, now):
        return False
    # A droptail counts the packet in service; CoDel and PIE have given it away.
    waiting = link[col.QUEUE_TAIL] - link[col.QUEUE_HEAD]
    kind = link[col.AQM]
    serving = kind == col.DROPTAIL and link[col.FREE] > now
    held = waiting + (1 if serving else 0)
    room = held < link[col.LIMIT]
    capable = queues[slot + col.Q_ECN] > 0
    if held >= link[col.MARK] and capable:
        queues[slot + col.Q_ECN] = col.MARKED
    if kind == col.PIE:
        oldest = math.inf
        if waiting > 0:
            oldest = float(queues[place(link, link[col.QUEUE_HEAD]) + col.Q_ARRIVAL])
        pie_catch_up(rule, now, oldest)
        chance = pie_chance(rule, waiting * PACKET_BYTES)
        if room and chance > 0:
            number = queues[slot + col.Q_FLOW] + LOTTERY_FLOW
            seq = queues[slot + col.Q_COUNTS] >> 32
            lot = loss_hash(link[col.LOSS_SEED], number, seq) >> 10  # 53 bits
            fate = pie_fate(chance, float(lot) * 2.0**-53, capable)
            if fate == aqm.MARK:
                queues[slot + col.Q_ECN] = col.MARKED
            return fate != aqm.DROP
    return room


@njit
def drop(queues: Any, slot: int, flows: Any, first_flow: int, log: Any) -> None:
    """Drop the packet at ``slot`` of the rings."""
    flows[first_flow + queues[slot + col.Q_FLOW], col.DROPPED] += 1
    if log is not None:
        log[queues[slot + col.Q_LOG], 2] = -1


@njit
def arrive(
    link: Any, traces: Any, queues: Any, rule: Any, flows: Any, first_flow: int, log: Any
) -> None:
    """Let the first packet of the hop reach the queue."""
    slot = place(link, link[col.HOP_HEAD])
    now = queues[slot + col.Q_ARRIVAL]
    link[col.HOP_HEAD] += 1
    # Opportunities that found an empty queue, up to now.
    if link[col.IS_TRACE] == 1:
        while opportunity(link, traces) <= now:
            skip_opportunity(link)
    if not admit(link, queues, rule, slot, now):
        drop(queues, slot, flows, first_flow, log)
        return
    to = place(link, link[col.QUEUE_TAIL])
    link[col.QUEUE_TAIL] += 1
    link[col.ACCEPTED] += 1
    for column in range(col.QUEUED):
        queues[to + column] = queues[slot + column]


@njit
def transmit(link: Any, schedule: Any, now: int) -> Any:
    """Return when a packet has left that a rate link takes now, and its time at the last rate."""
    times, rates, _, _ = schedule
    row = row_at(link, times, now)
    work = PACKET_WORK
    while True:
        rate = rates[row]
        until = times[row + 1] if row + 1 < link[col.SEGMENTS] else FOREVER
        if rate > 0:
            departure = now + (work + rate - 1) // rate
            if departure <= until:
                return departure, (PACKET_WORK + rate - 1) // rate
            work -= rate * (until - now)
        now = until
        row += 1


@njit
def deliver(
    link: Any,
    schedule: Any,
    queues: Any,
    slot: int,
    departure: int,
    waited: int,
    flows: Any,
    first_flow: int,
    ring: Any,
    scores: Any,
    log: Any,
) -> Any:
    """Lose the packet at ``slot``, or plan its ACK; tell which: delay and loss of its departure."""
    number = queues[slot + col.Q_FLOW]
    flow = flows[first_flow + number]
    seq = queues[slot + col.Q_COUNTS] >> 32
    times, _, rtts, losses = schedule
    row = row_at(link, times, departure)
    log_row = queues[slot + col.Q_LOG]
    if log is not None:
        log[log_row, 2] = departure
    if losses[row] > 0 and loss_hash(link[col.LOSS_SEED], number, seq) < losses[row]:
        flow[col.RANDOM_LOST] += 1
        return False
    # When it is acknowledged, which may change when the one held before it is.
    back = departure + rtts[row] + flow[col.EXTRA_RTT]
    ack_at = max(back, flow[col.LAST_ACK])
    tail = flow[col.TAIL]
    if link[col.SHAPES_ACKS] == 1:
        ack_at, flow[col.LAST_ACK], changed = acknowledge(
            link, flow, ring, tail, number, seq, back, flow[col.LAST_ACK]
        )
        if log is not None:
            if changed > 0:
                log[changed, 3] = ack_at
            flow[col.HELD_LOG] = log_row
    else:
        flow[col.LAST_ACK] = ack_at
    to = flow[col.RING_START] + (tail & flow[col.RING_MASK])
    ring[to, col.R_ACK_TIME] = ack_at
    ring[to, col.R_SEND_TIME] = queues[slot + col.Q_SEND_TIME]
    ring[to, col.R_DELIVERED_TIME] = queues[slot + col.Q_DELIVERED_TIME]
    ring[to, col.R_COUNTS] = queues[slot + col.Q_COUNTS]
    ring[to, col.R_WAIT] = ~waited if queues[slot + col.Q_ECN] == col.MARKED else waited
    flow[col.TAIL] = tail + 1
    if link[col.LATE_SHARE] > 0:
        flow[col.HEAD], flow[col.TAIL], ack_at = settle(
            link, flow, ring, scores, flow[col.HEAD], tail + 1, number, seq
        )
    if log is not None:
        log[log_row, 3] = ack_at
    return True


@njit
def take(link: Any, queues: Any, rule: Any, flows: Any, first_flow: int, log: Any, now: int) -> Any:
    """Take the first packet that is not dropped out of a queue that has one; return its place."""
    while True:
        slot = place(link, link[col.QUEUE_HEAD])
        arrival = queues[slot + col.Q_ARRIVAL]
        if link[col.AQM] == col.PIE:
            pie_catch_up(rule, now, float(arrival))
        link[col.QUEUE_HEAD] += 1
        left = link[col.QUEUE_TAIL] - link[col.QUEUE_HEAD]
        if link[col.AQM] != col.CODEL:
            return slot
        # CoDel keeps the last one.
        capable = queues[slot + col.Q_ECN] > 0
        fate = codel_fate(rule, now, arrival, left * PACKET_BYTES, capable)
        if fate == aqm.MARK:
            queues[slot + col.Q_ECN] = col.MARKED
        if fate != aqm.DROP:
            return slot
        link[col.ACCEPTED] -= 1
        drop(queues, slot, flows, first_flow, log)


@njit
def serve(
    link: Any,
    schedule: Any,
    traces: Any,
    queues: Any,
    rule: Any,
    flows: Any,
    first_flow: int,
    ring: Any,
    scores: Any,
    log: Any,
    until: int,
    end: int,
) -> Any:
    """Let the link's events up to a time happen; return whether an ACK may be a flow's next one."""
    while True:
        leaves = FOREVER
        if link[col.QUEUE_HEAD] < link[col.QUEUE_TAIL]:
            if link[col.IS_TRACE] == 1:
                leaves = opportunity(link, traces)
            else:
                oldest = queues[place(link, link[col.QUEUE_HEAD]) + col.Q_ARRIVAL]
                leaves = max(link[col.FREE], oldest)
        arrives = FOREVER
        if link[col.HOP_HEAD] < link[col.HOP_TAIL]:
            arrives = queues[place(link, link[col.HOP_HEAD]) + col.Q_ARRIVAL]
        if leaves <= min(until, arrives):
            slot = take(link, queues, rule, flows, first_flow, log, leaves)
            departure, service = leaves, 0
            if link[col.IS_TRACE] == 1:
                skip_opportunity(link)
            else:
                departure, service = transmit(link, schedule, leaves)
                link[col.FREE] = departure
            waited = max(departure - queues[slot + col.Q_ARRIVAL] - service, 0)
            rest = flows, first_flow, ring, scores, log
            if deliver(link, schedule, queues, slot, departure, waited, *rest):
                return True
        elif arrives <= until and arrives < end:
            arrive(link, traces, queues, rule, flows, first_flow, log)
        else:
            return False
