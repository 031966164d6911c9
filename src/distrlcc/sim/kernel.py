"""The compiled simulator: N bottleneck links with K flows each, advanced by one call.

The specification, which `distrlcc.sim.reference` implements a second time, slowly:

* Time is integer nanoseconds. A packet reaches the queue when it is sent, so its fate is known
  then. Live links are the exception: they have jitter before the queue, a policer, CoDel or PIE,
  and `distrlcc.sim.live_queue` serves them.
* Every packet is `PACKET_BYTES` long. A rate link serves one in ``ceil(bits / rate)``; at a change
  of the rate the work left goes on at the new rate. A trace link sends one packet at each
  opportunity strictly after its arrival; the trace wraps.
* The queue drops an arrival when ``limit`` accepted packets have not departed yet.
* After the queue, a packet is lost when a hash of (seed, flow, sequence number) says so.
* Delay and loss are those of the schedule's row in force at the departure. The ACK comes at
  departure + 2 * delay + the flow's own share, never before the flow's previous ACK.
* A link may shape ACKs. A receiver that delays them holds one for 40 ms, or until the next packet
  comes, whose ACK is that of both. It does not hold that of a packet after a gap. An ACK then waits
  for its jitter's time (`distrlcc.sim.acks.wait`), and for the next tick.
* A link may reorder: a hash of a packet's name says whether its ACK comes later than all that.
  ACKs of later packets overtake it, and flows find losses as `distrlcc.sim.reordering` says. On
  other links a sequence number that is skipped by an ACK is lost.
* A live link's queue may mark packets of flows that take marks (ECN); the packet's ACK says so.
* A flow sends while fewer than ``floor(cwnd)`` packets are in flight: at once, or, when paced, one
  packet each ``floor(1e9 / rate)`` ns.
* The timer is RFC 6298's, in whole eighths and quarters of a ns. Its first sample is the path's RTT
  as the flow starts, which a handshake shows. It runs while packets are in flight, from the newest
  ACK or a first packet on. When it fires one packet leaves, and its timeout doubles.
* A timeout was spurious if an ACK of a packet sent before it comes first: the scheme gets its
  earlier state back (Eifel, RFC 3522 and 4015).
* A flow of a size sends while less than that is acknowledged or in flight; it stops when so much is
  acknowledged.
* Ties: changes of the schedule, then departures at T, then arrivals at T. A step first fills the
  windows, lower flow first. Then come, at each time, ACKs, paced sends, timers and starts, lower
  flow first within each. A step ends before the events at its end.

All state is hoisted into local variables while a flow runs: through array elements the same code
takes three times as long. A ring that is full ends the call with the environment's index; the
caller enlarges the ring and calls again, and nothing has changed but the time taken.
"""

# ruff: noqa: C901, SIM102 - one function, for state in locals is what makes it fast; and numba
# leaves out what stands under `x is not None`, alone in its condition, where x is None.

import math
from typing import Any

import numpy as np

from distrlcc.control.compiled import njit
from distrlcc.control.schemes import FIXED, ORACLE, copy_row, initialise, on_ack, on_timeout, undo
from distrlcc.control.state import CWND, PACING
from distrlcc.sim import layout as col
from distrlcc.sim import reordering
from distrlcc.sim.acks import acknowledge, loss_hash
from distrlcc.sim.capacity import PACKET_BITS, PACKET_WORK, best_window, carried, row_at, senders
from distrlcc.sim.layout import FOREVER
from distrlcc.sim.live_queue import enter, is_full, serve
from distrlcc.sim.reordering import timeout
from distrlcc.transport import recovery
from distrlcc.types import NANOSECONDS

MEGABITS_PER_PACKET = PACKET_BITS * 1e-6

pacing_interval = njit(recovery.pacing_interval)


@njit
def delay_bin(delay_ns: int) -> Any:
    """Return the histogram bin of a delay (bins grow by 1%)."""
    return min(col.HISTOGRAM_BINS - 1, int(math.log1p(delay_ns * 1e-5) * 100.49917080713044))


@njit
def next_event(
    started: bool,
    start: int,
    stop: int,
    ack_time: int,
    timer: int,
    pacing: float,
    next_send: int,
    inflight: int,
    window: int,
) -> Any:
    """Return a flow's next event: its time and its kind (0 ACK, 1 paced send, 2 timer, 3 start)."""
    if not started:
        return (start if start < stop else FOREVER), 3
    time = FOREVER
    kind = 3
    if timer < stop:
        time = timer
        kind = 2
    if pacing > 0.0 and next_send <= time and next_send < stop and inflight < window:
        time = next_send
        kind = 1
    if ack_time <= time:
        time = ack_time
        kind = 0
    return time, kind


@njit
def advance(
    until: Any,
    links: Any,
    times: Any,
    rates: Any,
    rtts: Any,
    losses: Any,
    traces: Any,
    flows: Any,
    control: Any,
    saved: Any,
    ring: Any,
    scores: Any,
    queues: Any,
    aqm: Any,
    schemes: Any,
    ewmas: Any,
    link_results: Any,
    with_best: bool,
    histograms: Any,
    log: Any,
) -> Any:
    """Advance every environment to its own end of step.

    Args:
        until: int64 ``[N]``, ends of the steps, ns.
        links: int64 ``[N, LINK_COLUMNS]``.
        times: int64 ``[N, S]``, starts of the schedule's rows; the first is 0.
        rates: int64 ``[N, S]``, bit/s.
        rtts: int64 ``[N, S]``, twice the one-way delay, ns.
        losses: int64 ``[N, S]``, loss probability times 2**63.
        traces: int64 ``[·]``, all traces' opportunities, ns, one after another.
        flows: int64 ``[F, FLOW_COLUMNS]``.
        control: float64 ``[F, STATE_SIZE]``, controllers' state.
        saved: float64 ``[F, STATE_SIZE]``, what it was before the newest recovery or timeout.
        ring: int64 ``[·, RECORD]``, all flows' packets in flight.
        scores: int64 ``[·, SCORE]``, as long if any link reorders; see `distrlcc.sim.reordering`.
        queues: int64 ``[·]``, rings of scheduled links' departures and of live links' packets.
        aqm: float64 ``[N, aqm.COLUMNS]``, rows of CoDel and PIE; None if no link is live or
            reorders and no flow has a size.
        schemes: True if any flow runs a scheme, else None.
        ewmas: float64 ``[F, 3]``, Indigo's, filled; or None.
        link_results: float64 ``[N, LINK_RESULTS]``, filled; `TOTAL_USED` goes on from step to step.
        with_best: Whether to fill `BEST_CWND`, which costs some time on traces.
        histograms: int32 ``[2, F, HISTOGRAM_BINS]``: queueing delays, then RTTs, of the
            acknowledged packets; or None.
        log: int64 ``[·, 4]``: row 0 holds (rows used, …), then one row a packet sent: flow, send
            time, departure (-1 dropped), ACK time (-1 dropped or lost); or None.

    Returns:
        -1, or the first environment with a flow (the one with `PENDING` not negative) whose ring
        is full, or with a full log: enlarge it and call again. -2 less that environment's
        number: a flow's counts are full.
    """
    n_links = links.shape[0]
    places = flows.shape[0] // n_links
    for n in range(n_links):
        link = links[n]
        end = until[n]
        now = link[col.NOW]
        if now >= end:
            continue
        # The link's state in local variables, until the link's step is over.
        limit = link[col.LIMIT]
        seed = link[col.LOSS_SEED]
        segments = link[col.SEGMENTS]
        is_trace = link[col.IS_TRACE] == 1
        free = link[col.FREE]
        segment = link[col.SEGMENT]
        accepted = link[col.ACCEPTED]
        trace_start = link[col.TRACE_START]
        trace_length = link[col.TRACE_LENGTH]
        period = link[col.TRACE_PERIOD]
        cursor = link[col.CURSOR]
        cursor_row = link[col.CURSOR_ROW]
        cursor_base = link[col.CURSOR_BASE]
        cursor_time = FOREVER
        following = link[col.NEXT]
        next_row = link[col.NEXT_ROW]
        next_base = link[col.NEXT_BASE]
        if is_trace:
            cursor_time = cursor_base + traces[trace_start + cursor_row]
        service = link[col.SERVICE]
        backlog_limit = (limit - 1) * service if limit < FOREVER else FOREVER
        row_rtt = rtts[n, segment]
        row_loss = losses[n, segment]
        row_end = times[n, segment + 1] if segment + 1 < segments else FOREVER
        queue_ring = link[col.QUEUE_RING_START]
        shapes_acks = link[col.SHAPES_ACKS] == 1
        n_flows = link[col.FLOWS]
        live = False
        reorders = False
        if aqm is not None:
            live = link[col.LIVE] == 1
            reorders = link[col.LATE_SHARE] > 0
        schedule = times[n], rates[n], rtts[n], losses[n]
        alone = n_flows == 1 and not live  # the flow's next event is the link's

        # Go on with a step that a full ring broke off, or begin one: zero the flows' sums of the
        # step and set the oracles' windows.
        first_flow = n * places
        filling = 0  # the next flow whose window is filled at the step's start
        resumed = -1  # the flow whose ring was full in the call before
        if link[col.STEP_OPEN] > 0:
            filling = link[col.STEP_OPEN] - 1
            for k in range(n_flows):
                if flows[first_flow + k, col.PENDING] >= 0:
                    resumed = k
        else:
            link[col.STEP_START] = now
            link[col.STEP_CURSOR] = cursor
            for f in range(first_flow, first_flow + n_flows):
                for column in range(col.STEP_SENT, col.STEP_RTT_MAX + 1):
                    flows[f, column] = 0
                if aqm is not None:
                    flows[f, col.STEP_SPURIOUS] = 0
                if ewmas is not None:
                    ewmas[f, :] = 0.0
                if flows[f, col.SCHEME] == ORACLE:
                    extra, step = flows[f, col.EXTRA_RTT], end - now
                    best = best_window(link, schedule, traces, extra, now, step)
                    sharing = senders(flows, first_flow, first_flow + n_flows, now, end)
                    control[f, CWND] = math.ceil(best / sharing)
        full = False
        while True:
            # Which flow acts next, and until when may it go on without looking at the others?
            best_time = FOREVER
            best_kind = 9
            best_flow = 0
            other_time = FOREVER
            other_kind = 9
            other_flow = n_flows
            filled = -1
            if resumed >= 0 or filling < n_flows:
                if resumed >= 0:
                    best_flow = resumed
                    resumed = -1
                else:
                    best_flow = filling
                    filled = filling
                    filling += 1
                if not alone:
                    other_time = -1
            elif not alone:
                for k in range(n_flows):
                    f = first_flow + k
                    ack_time = FOREVER
                    if flows[f, col.HEAD] < flows[f, col.TAIL]:
                        slot = flows[f, col.HEAD] & flows[f, col.RING_MASK]
                        ack_time = ring[flows[f, col.RING_START] + slot, col.R_ACK_TIME]
                    window = int(control[f, CWND])
                    inflight = flows[f, col.SENT] - flows[f, col.NEXT_ACK]
                    timer = FOREVER
                    if inflight > 0 or window < 1:
                        timer = flows[f, col.TIMER_START] + timeout(
                            flows[f, col.SRTT], flows[f, col.RTTVAR], flows[f, col.BACKOFF]
                        )
                    if aqm is not None:
                        if reorders:
                            timer = min(timer, flows[f, col.LOSS_TIME])
                    life = flows[f, col.STARTED] == 1, flows[f, col.START], flows[f, col.STOP]
                    most = min(window, flows[f, col.SIZE] - flows[f, col.DELIVERED])
                    sends = control[f, PACING], flows[f, col.NEXT_SEND], inflight, most
                    time, kind = next_event(*life, ack_time, timer, *sends)
                    if time < best_time or (time == best_time and kind < best_kind):
                        other_time = best_time
                        other_kind = best_kind
                        other_flow = best_flow
                        best_time = time
                        best_kind = kind
                        best_flow = k
                    elif time < other_time or (time == other_time and kind < other_kind):
                        other_time = time
                        other_kind = kind
                        other_flow = k
                # A live link's events come first; then those of one time alone.
                if aqm is not None:
                    if live:
                        rows = queues, aqm[n], flows, first_flow, ring, scores, log
                        if serve(link, schedule, traces, *rows, min(best_time, end), end):
                            continue
                        if other_time > best_time:
                            other_time = best_time
                            other_kind = 9
                if best_time >= end:
                    break

            # The flow's state in local variables, for as long as it runs.
            f = first_flow + best_flow
            state = control[f]
            scheme = flows[f, col.SCHEME]
            start = flows[f, col.START]
            stop = flows[f, col.STOP]
            size = flows[f, col.SIZE]
            started = flows[f, col.STARTED] == 1
            extra = flows[f, col.EXTRA_RTT]
            sent = flows[f, col.SENT]
            next_ack = flows[f, col.NEXT_ACK]
            delivered = flows[f, col.DELIVERED]
            delivered_time = flows[f, col.DELIVERED_TIME]
            head = flows[f, col.HEAD]
            tail = flows[f, col.TAIL]
            last_ack = flows[f, col.LAST_ACK]
            next_send = flows[f, col.NEXT_SEND]
            timer_start = flows[f, col.TIMER_START]
            srtt = flows[f, col.SRTT]
            rttvar = flows[f, col.RTTVAR]
            backoff = flows[f, col.BACKOFF]
            min_rtt = flows[f, col.MIN_RTT]
            last_rtt = flows[f, col.LAST_RTT]
            ring_start = flows[f, col.RING_START]
            ring_mask = flows[f, col.RING_MASK]
            step_sent = flows[f, col.STEP_SENT]
            step_acked = flows[f, col.STEP_ACKED]
            step_lost = flows[f, col.STEP_LOST]
            rtt_sum = flows[f, col.STEP_RTT_SUM]
            rtt_min = flows[f, col.STEP_RTT_MIN] if step_acked > 0 else FOREVER
            rtt_max = flows[f, col.STEP_RTT_MAX]
            dropped = flows[f, col.DROPPED]
            random_lost = flows[f, col.RANDOM_LOST]
            queueing_sum = flows[f, col.QUEUEING_SUM]
            delay_ewma = 0.0
            rate_ewma = 0.0
            send_ewma = 0.0
            if ewmas is not None:
                delay_ewma = ewmas[f, 0]
                rate_ewma = ewmas[f, 1]
                send_ewma = ewmas[f, 2]
            window = int(state[CWND])
            pacing = state[PACING]
            # At the step's start an unpaced flow fills its window, whose size may be new.
            pending = max(flows[f, col.PENDING], 0)
            if filled >= 0 and started:
                if pacing > 0.0:
                    next_send = min(max(next_send, now), now + pacing_interval(pacing))
                elif now < stop:
                    pending = min(window, size - delivered) - (sent - next_ack)
            while True:
                # Send at `now`, on a live link into the hop before the queue.
                if pending > 0 and sent == next_ack:
                    timer_start = now
                if aqm is not None:
                    if live:
                        while pending > 0:
                            full = sent - next_ack > ring_mask or is_full(link)
                            if reorders and not full:
                                full = sent - flows[f, col.LOW] > ring_mask
                                if not full:
                                    reordering.send(flows[f], scores, sent, now)
                            log_row = 0
                            if log is not None:
                                log_row = log[0, 0] + 1
                                full = full or log_row >= log.shape[0]
                            if full:
                                break
                            packet = (sent << 32) | delivered
                            slot = enter(link, queues, best_flow, packet, now, log_row)
                            queues[slot + col.Q_DELIVERED_TIME] = delivered_time
                            queues[slot + col.Q_ECN] = flows[f, col.ECN]
                            if log is not None:
                                log[0, 0] = log_row
                                log[log_row] = best_flow, now, FOREVER, -1
                            pending -= 1
                            sent += 1
                            step_sent += 1
                        if full:
                            break
                # On any other the packet's whole fate is settled here.
                while pending > 0:
                    if tail - head > ring_mask:
                        full = True
                        break
                    if aqm is not None:
                        if reorders and sent - flows[f, col.LOW] > ring_mask:
                            full = True
                            break
                    if log is not None:
                        if log[0, 0] + 1 >= log.shape[0]:
                            full = True
                            break
                    pending -= 1
                    departure = -1
                    ack_at: Any = np.int64(-1)
                    waited: Any = np.int64(0)
                    if is_trace:
                        # A trace: the next opportunity that no packet holds, unless the queue of
                        # packets that hold the ones before is full.
                        while cursor_time <= now:
                            cursor += 1
                            cursor_row += 1
                            if cursor_row == trace_length:
                                cursor_row = 0
                                cursor_base += period
                            cursor_time = cursor_base + traces[trace_start + cursor_row]
                        if following < cursor:
                            following = cursor
                            next_row = cursor_row
                            next_base = cursor_base
                        if following - cursor < limit:
                            departure = next_base + traces[trace_start + next_row]
                            waited = departure - now
                            following += 1
                            next_row += 1
                            if next_row == trace_length:
                                next_row = 0
                                next_base += period
                    elif segments == 1:
                        # A constant rate: the limit is a bound of the time until the link is free.
                        if free - now <= backlog_limit:
                            departure = max(now, free) + service
                            waited = departure - now - service
                            free = departure
                    else:
                        # A schedule: serve the packet's bits at one rate after another.
                        place = -1
                        if limit < FOREVER:
                            place = queue_ring + accepted % limit
                        if place < 0 or queues[place] <= now:
                            begin = max(now, free)
                            row = segment
                            while row + 1 < segments and times[n, row + 1] <= begin:
                                row += 1
                            work = PACKET_WORK
                            while True:
                                rate = rates[n, row]
                                until_row = times[n, row + 1] if row + 1 < segments else FOREVER
                                if rate > 0:
                                    departure = begin + (work + rate - 1) // rate
                                    if departure <= until_row:
                                        waited = departure - now - (PACKET_WORK + rate - 1) // rate
                                        break
                                    work -= rate * (until_row - begin)
                                begin = until_row
                                row += 1
                            waited = max(waited, 0)
                            free = departure
                            if limit < FOREVER:
                                queues[place] = departure
                    if departure < 0:
                        dropped += 1
                    else:
                        # Delay and loss are the schedule's at the departure.
                        accepted += 1
                        while departure >= row_end:
                            segment += 1
                            row_rtt = rtts[n, segment]
                            row_loss = losses[n, segment]
                            row_end = times[n, segment + 1] if segment + 1 < segments else FOREVER
                        if row_loss > 0 and loss_hash(seed, best_flow, sent) < row_loss:
                            random_lost += 1
                        else:
                            back = departure + row_rtt + extra
                            if shapes_acks:
                                ack_at, last_ack, changed = acknowledge(
                                    link, flows[f], ring, tail, best_flow, sent, back, last_ack
                                )
                                if log is not None:
                                    if changed > 0:
                                        log[changed, 3] = ack_at
                                    flows[f, col.HELD_LOG] = log[0, 0] + 1
                            else:
                                ack_at = max(back, last_ack)
                                last_ack = ack_at
                            slot = ring_start + (tail & ring_mask)
                            ring[slot, col.R_ACK_TIME] = ack_at
                            ring[slot, col.R_SEND_TIME] = now
                            ring[slot, col.R_DELIVERED_TIME] = delivered_time
                            ring[slot, col.R_COUNTS] = (sent << 32) | delivered
                            ring[slot, col.R_WAIT] = waited
                            tail += 1
                            if aqm is not None:
                                if reorders:
                                    head, tail, ack_at = reordering.settle(
                                        link, flows[f], ring, scores, head, tail, best_flow, sent
                                    )
                    if log is not None:
                        log[0, 0] += 1
                        log[log[0, 0]] = best_flow, now, departure, ack_at
                    if aqm is not None:
                        if reorders:
                            reordering.send(flows[f], scores, sent, now)
                    sent += 1
                    step_sent += 1
                if full:
                    break
                pending = 0

                # The flow's next event, unless the step ends or another flow's event comes before.
                slot = ring_start + (head & ring_mask)
                time = ring[slot, col.R_ACK_TIME] if head < tail else FOREVER
                kind = 0
                # Most often it is an ACK, and nothing else can come before.
                if pacing > 0.0 or not started or time > timer_start + recovery.MIN_RTO or reorders:
                    timer = FOREVER
                    if sent > next_ack or window < 1:
                        timer = timer_start + timeout(srtt, rttvar, backoff)
                    if aqm is not None:
                        if reorders:
                            timer = min(timer, flows[f, col.LOSS_TIME])
                    most = min(window, size - delivered)
                    time, kind = next_event(
                        started, start, stop, time, timer, pacing, next_send, sent - next_ack, most
                    )
                if time >= end:
                    break
                if time >= other_time and (
                    time > other_time
                    or kind > other_kind
                    or (kind == other_kind and best_flow > other_flow)
                ):
                    break
                now = time
                if kind == 0:
                    # An ACK: what it acknowledges and shows to be lost, then the step's sums.
                    send_time = ring[slot, col.R_SEND_TIME]
                    packet = ring[slot, col.R_COUNTS]
                    elapsed = now - ring[slot, col.R_DELIVERED_TIME]
                    head += 1
                    seq = packet >> 32
                    prior = packet & 0xFFFFFFFF
                    rtt = now - send_time
                    undone = False
                    begins = False
                    told = seq
                    if reorders:
                        # The sender looks for losses among those that were overtaken for long.
                        newest = seq > flows[f, col.LARGEST]
                        taken, undone = reordering.receive(flows[f], scores, seq, rtt, now, backoff)
                        min_rtt = rtt if min_rtt == 0 else min(min_rtt, rtt)
                        if newest:
                            error = rtt - (srtt >> 3)
                            srtt += error
                            rttvar += abs(error) - (rttvar >> 2)
                        lost = reordering.find_lost(flows[f], scores, sent, min_rtt, now)
                        step_lost += lost
                        next_ack += taken + lost
                        lost = flows[f, col.UNREPORTED]
                        if lost > 0:
                            told = flows[f, col.LARGEST_LOST] + 1
                            flows[f, col.LARGEST_TOLD] = flows[f, col.LARGEST_LOST]
                            begins = flows[f, col.BEGINS] == 1
                            flows[f, col.UNREPORTED] = 0
                            flows[f, col.BEGINS] = 0
                            if begins:
                                flows[f, col.RECOVERY_UNTIL] = sent
                    else:
                        lost = seq - next_ack
                        next_ack = seq + 1
                        step_lost += lost
                        if min_rtt == 0 or rtt < min_rtt:
                            min_rtt = rtt
                        error = rtt - (srtt >> 3)
                        srtt += error
                        rttvar += abs(error) - (rttvar >> 2)
                        if backoff > 0:
                            undone = seq < flows[f, col.PROBE]
                    backoff = 0
                    delivered += 1
                    delivered_time = now
                    timer_start = now
                    last_rtt = rtt
                    rtt_min = min(rtt_min, last_rtt)
                    rtt_max = max(rtt_max, last_rtt)
                    rtt_sum += last_rtt
                    if ewmas is not None:
                        delay = (last_rtt - min_rtt) * 1e-6
                        rate_sample = (
                            (delivered - prior) * MEGABITS_PER_PACKET / max(1e-3, elapsed * 1e-9)
                        )
                        send_sample = (
                            (sent - seq) * MEGABITS_PER_PACKET / max(1e-3, last_rtt * 1e-9)
                        )
                        if step_acked == 0:
                            delay_ewma = delay
                            rate_ewma = rate_sample
                            send_ewma = send_sample
                        else:
                            delay_ewma += 0.125 * (delay - delay_ewma)
                            rate_ewma += 0.125 * (rate_sample - rate_ewma)
                            send_ewma += 0.125 * (send_sample - send_ewma)
                    step_acked += 1
                    # How long it waited, and whether it was marked.
                    wait = ring[slot, col.R_WAIT]
                    marked = 0
                    if aqm is not None:
                        if reorders:
                            head = reordering.bring(flows[f], ring, scores, head, tail)
                        if wait < 0:
                            wait = ~wait
                            marked = 1
                            flows[f, col.MARKS] += 1
                    queueing_sum += wait
                    if histograms is not None:
                        histograms[0, f, delay_bin(wait)] += 1
                        histograms[1, f, delay_bin(last_rtt)] += 1
                    # The scheme moves window and rate; an unpaced flow fills its window at once.
                    if schemes is not None:
                        if scheme > FIXED:
                            if undone:
                                undo(state, saved[f])
                            if begins:
                                copy_row(state, saved[f])
                            counts = told, sent, lost, sent - next_ack, delivered, prior
                            speed = (delivered - prior) * float(NANOSECONDS) / max(elapsed, 1)
                            on_ack(scheme, state, now, last_rtt, *counts, speed, marked)
                            window = int(state[CWND])
                            pacing = state[PACING]
                    if aqm is not None:
                        if delivered == size:
                            flows[f, col.COMPLETED] = now
                            stop = min(stop, now)
                            flows[f, col.STOP] = stop
                    if pacing > 0.0:
                        next_send = max(next_send, now)
                    elif now < stop:
                        pending = min(window, size - delivered) - (sent - next_ack)
                elif kind == 1:
                    # A paced send.
                    pending = 1
                    next_send = now + pacing_interval(pacing)
                elif kind == 2:
                    # The timer: packets that were overtaken for long are lost.
                    if aqm is not None:
                        if reorders and flows[f, col.LOSS_TIME] <= now:
                            lost = reordering.find_lost(flows[f], scores, sent, min_rtt, now)
                            step_lost += lost
                            next_ack += lost
                    # Or nothing was acknowledged for a timeout: a packet leaves anyway.
                    least = 0
                    waits = sent > next_ack or window < 1
                    if waits and timer_start + timeout(srtt, rttvar, backoff) <= now:
                        least = 1
                        flows[f, col.STEP_TIMEOUTS] += 1
                        if backoff == 0:
                            flows[f, col.PROBE] = sent
                            flows[f, col.RECOVERY_FROM] = sent
                            flows[f, col.RECOVERY_UNTIL] = sent
                            flows[f, col.RECOVERY_LOST] = 0
                            flows[f, col.BEGINS] = 0
                        if schemes is not None:
                            if scheme > FIXED:
                                if backoff == 0:
                                    copy_row(state, saved[f])
                                on_timeout(scheme, state, sent)
                                window = int(state[CWND])
                                pacing = state[PACING]
                        backoff += 1
                        timer_start = now
                    pending = least
                    if pacing > 0.0:
                        next_send = max(next_send, now)
                    else:
                        most = min(window, size - delivered)
                        pending = max(most - (sent - next_ack), least)
                else:
                    # The flow's start.
                    started = True
                    if schemes is not None:
                        if scheme > ORACLE:
                            initialise(scheme, state, now, flows[f, col.FLOW_SEED], state[CWND])
                            window = int(state[CWND])
                            pacing = state[PACING]
                    delivered_time = now
                    timer_start = now
                    rtt = max(rtts[n, row_at(link, times[n], now)] + extra, 1)
                    srtt = 8 * rtt
                    rttvar = 2 * rtt
                    next_send = now
                    if pacing == 0.0:
                        pending = min(window, size - delivered)

            # The flow waits for others, or the step is over: store its state.
            flows[f, col.STARTED] = 1 if started else 0
            flows[f, col.SENT] = sent
            flows[f, col.NEXT_ACK] = next_ack
            flows[f, col.DELIVERED] = delivered
            flows[f, col.DELIVERED_TIME] = delivered_time
            flows[f, col.HEAD] = head
            flows[f, col.TAIL] = tail
            flows[f, col.LAST_ACK] = last_ack
            flows[f, col.NEXT_SEND] = next_send
            flows[f, col.TIMER_START] = timer_start
            flows[f, col.SRTT] = srtt
            flows[f, col.RTTVAR] = rttvar
            flows[f, col.BACKOFF] = backoff
            flows[f, col.MIN_RTT] = min_rtt
            flows[f, col.LAST_RTT] = last_rtt
            flows[f, col.STEP_SENT] = step_sent
            flows[f, col.STEP_ACKED] = step_acked
            flows[f, col.STEP_LOST] = step_lost
            flows[f, col.STEP_RTT_SUM] = rtt_sum
            flows[f, col.STEP_RTT_MIN] = rtt_min if step_acked > 0 else 0
            flows[f, col.STEP_RTT_MAX] = rtt_max
            flows[f, col.DROPPED] = dropped
            flows[f, col.RANDOM_LOST] = random_lost
            flows[f, col.QUEUEING_SUM] = queueing_sum
            if ewmas is not None:
                ewmas[f, 0] = delay_ewma
                ewmas[f, 1] = rate_ewma
                ewmas[f, 2] = send_ewma
            flows[f, col.PENDING] = pending if full else -1
            if sent > col.MAX_PACKETS or queueing_sum < 0:
                return -2 - n
            if full or alone:
                break

        # Store the link's state, unless it is live and stands there; a full ring ends the call.
        link[col.NOW] = now if full else end
        if live:
            free = link[col.FREE]
            accepted = link[col.ACCEPTED]
        else:
            link[col.FREE] = free
            link[col.SEGMENT] = segment
            link[col.ACCEPTED] = accepted
            if is_trace and not full:
                while cursor_time <= end:
                    cursor += 1
                    cursor_row += 1
                    if cursor_row == trace_length:
                        cursor_row = 0
                        cursor_base += period
                    cursor_time = cursor_base + traces[trace_start + cursor_row]
            link[col.CURSOR] = cursor
            link[col.CURSOR_ROW] = cursor_row
            link[col.CURSOR_BASE] = cursor_base
            link[col.NEXT] = following
            link[col.NEXT_ROW] = next_row
            link[col.NEXT_BASE] = next_base
        link[col.STEP_OPEN] = filling + 1 if full else 0
        if full:
            return n

        # The step's results: capacity, what was used of it, queue, base round trip, best window.
        base = float(rtts[n, 0])
        if is_trace:
            capacity = float(cursor - link[col.STEP_CURSOR])
            queue = float(max(following - cursor, 0))
        elif segments == 1:
            capacity = float(end - link[col.STEP_START]) / float(service)
            queue = float(max(free - end, 0)) / float(service)
            base += float(service)
        else:
            capacity = carried(link, schedule, traces, link[col.STEP_START], end)
            queue = carried(link, schedule, traces, end, max(free, end))
        if segments > 1:
            row = row_at(link, times[n], end)
            base = float(rtts[n, row])
            if rates[n, row] > 0:
                base += float(PACKET_WORK) / float(rates[n, row])
        # On a live link what waits counts beside what is in service.
        if aqm is not None:
            if live:
                queue += float(link[col.QUEUE_TAIL] - link[col.QUEUE_HEAD])
                if is_trace:
                    capacity = carried(link, schedule, traces, link[col.STEP_START], end)
        # A queue counts a little more than its packets, as each departs in a whole ns.
        used = max(accepted - queue, link_results[n, col.TOTAL_USED])
        link_results[n, col.USED] = used - link_results[n, col.TOTAL_USED]
        link_results[n, col.TOTAL_USED] = used
        # Behind a policer it is what that has let through so far, or would have.
        if aqm is not None:
            if live and link[col.POLICER_RATE] > 0:
                whole = carried(link, schedule, traces, 0, end)
                policed = float(link[col.POLICER_RATE]) * float(end) / float(PACKET_WORK)
                total = max(min(whole, policed), used)
                capacity = total - link_results[n, col.TOTAL_CAPACITY]
                link_results[n, col.TOTAL_CAPACITY] = total
        link_results[n, col.CAPACITY] = capacity
        link_results[n, col.QUEUE] = queue
        link_results[n, col.BASE_RTT] = base / NANOSECONDS
        if with_best:
            extra, step = flows[first_flow, col.EXTRA_RTT], end - link[col.STEP_START]
            best = best_window(link, schedule, traces, extra, end, step)
            sharing = senders(flows, first_flow, first_flow + n_flows, end, end + step)
            link_results[n, col.BEST_CWND] = best / sharing
    return -1
