"""The simulator a second time: event by event, in plain Python, from the same specification.

It shares no code with `distrlcc.sim.kernel` but scenarios, constants, controllers and the rules of
CoDel and PIE, which are written once. Its flows are driven by `distrlcc.transport.sender`, the very
sender that real sockets use. Queues are explicit, a packet's fate is found when it happens, and
every event stands in a heap. About a thousand times slower, and the judge.
"""

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from distrlcc.control.base import Controller, Held
from distrlcc.control.schemes import SchemeController
from distrlcc.sim.link import NEVER, RateLink, TraceLink
from distrlcc.sim.queues import Packet, Policer
from distrlcc.sim.scenario import Flow, JitterKind, Link, Scenario
from distrlcc.sim.trace import load_trace
from distrlcc.transport.sender import REORDERED_OPTIONS, SIMULATOR_OPTIONS, Sender
from distrlcc.types import NANOSECONDS, PACKET_BYTES, IntervalStats

# Ties at one time, in order.
ARRIVE, RECEIVED, RELEASE, ACK, PACED, TIMER, BEGIN = range(7)
_DELAYED_ACK = 40_000_000
_JITTER_FLOW, _HOP_FLOW, _LOTTERY_FLOW, _LATE_FLOW, _NO_FLOW = (1 << n for n in (20, 21, 22, 23, 8))
PACKET_BITS = PACKET_BYTES * 8 * NANOSECONDS  # in 1e-9 bit, so that sums are exact
_MASK = (1 << 64) - 1


def _hash(seed: int, flow: int, seq: int) -> int:
    """Return 63 bits of SplitMix64 of a packet's name."""
    z = (seed + (flow << 40) + seq) & _MASK
    z = (z + 0x9E3779B97F4A7C15) * 0x94D049BB133111EB & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return (z ^ (z >> 31)) >> 1


def lost_at_random(seed: int, flow: int, seq: int, probability: float) -> bool:
    """Tell whether the link loses a packet: a hash of its name against the probability."""
    return _hash(seed, flow, seq) < min(int(probability * 2.0**63), 2**63 - 1)


@dataclass(slots=True)
class Record:
    """One packet's story; -1 is what never happened."""

    flow: int
    sent: int
    arrival: int  # at the queue
    departure: int = -1
    ack: int = -1
    marked: bool = False


class _Flow:
    def __init__(self, number: int, flow: Flow, seed: int) -> None:
        self.number, self.flow, self.seed = number, flow, seed
        self.start, self.stop = flow.span_ns
        self.extra = round(flow.extra_rtt_ms * 1e6)
        self.held = Held(*flow.first_held)
        """Window and rate of an agent, or of the oracle, which has them at each step's start."""
        self.controller: Controller = self.held
        self.sender: Sender | None = None  # None before it starts
        self.stats: IntervalStats | None = None  # of the newest step
        self.packets: list[Record] = []
        self.last_ack = self.queueing = self.delivered = self.completed = self.marked = 0
        # Its receiver, where ACKs are shaped.
        self.newest = self.expected = 0
        self.unacknowledged: int | None = None
        self.planned = dict.fromkeys((PACED, TIMER), NEVER)
        """Events that stand in the heap: the earliest of each kind."""

    def begin(self, link: Link, step_start: int, now: int) -> Sender:
        if self.flow.scheme not in ("agent", "oracle"):
            self.controller = SchemeController(
                self.flow.scheme, now=now, seed=self.seed, parameter=self.held.cwnd
            )
        options = REORDERED_OPTIONS if link.reorder else SIMULATOR_OPTIONS
        rtt = max(2 * conditions_at(link, now)[0] + self.extra, 1)
        self.sender = Sender(
            self.controller, options, now=now, step_start=step_start, first_rtt=rtt
        )
        return self.sender


class Reference:
    """One scenario, event by event."""

    def __init__(self, scenario: Scenario) -> None:
        """Set up a scenario at time zero; raises TraceError."""
        self.scenario = scenario
        self.link = build_link(scenario, self._note_drop)
        packets, rate = scenario.link.policer_packets, scenario.link.policer_mbps or 0.0
        self._policer = packets and Policer(round(rate * 1e6), packets * PACKET_BYTES)
        self._hop_arrival = 0
        self.flows = [
            _Flow(k, flow, scenario.seed * 64 + k) for k, flow in enumerate(scenario.flows)
        ]
        self.records: list[Record] = []
        self.now = self._step_start = 0
        self._events: list[tuple[int, int, int, int, int, int]] = []
        self._count = itertools.count()
        for flow in self.flows:
            if flow.start < flow.stop:
                self._push(flow.start, BEGIN, flow)

    def run(self, step: int) -> None:
        """Advance by a step, ns: fill the windows, then every event before the step's end."""
        self._step_start = self.now
        end = self.now + step
        self.settle()
        for flow in self.flows:
            if flow.flow.scheme == "oracle":
                flow.held.cwnd = math.ceil(self.best_window(flow.number, end))
            if flow.sender is not None:
                flow.sender.on_action(now=self.now)
                self._continue(flow, flow.sender)
        while True:
            time = min(self.link.next_time(), self._events[0][0] if self._events else NEVER)
            if time >= end:
                break
            self.now = time
            if self.link.next_time() == time:
                self._link_event()
            else:
                _, kind, _, _, number, seq = heapq.heappop(self._events)
                self._event(kind, self.flows[number], time, seq)
        self.now = end
        for flow in self.flows:
            if flow.sender is not None:
                flow.stats = flow.sender.take_interval(now=end)

    def best_window(self, number: int, end: int) -> Fraction:
        """Return the oracle's window of a flow for a step from now on; see `best_window`."""
        spans = ((flow.start, flow.stop) for flow in self.flows)
        return best_window(self.scenario, number, self.now, end, spans)

    def settle(self) -> None:
        """Let departures at this instant happen: they come before the windows are filled."""
        while self.link.next_time() <= self.now:
            self._link_event()

    def drain(self) -> None:
        """Let every queued packet depart and be acknowledged, with nothing sent any more."""
        while self._events or any(r.departure == NEVER for r in self.records):
            # What is on its way to the queue and what stands in it, in order.
            if not self._events or self.link.next_time() <= self._events[0][0]:
                self._link_event()
                continue
            time, kind, _, _, number, seq = heapq.heappop(self._events)
            if kind in (ARRIVE, RECEIVED, RELEASE):
                self._event(kind, self.flows[number], time, seq)

    def _event(self, kind: int, flow: _Flow, time: int, seq: int) -> None:
        if kind == ARRIVE:
            self._arrive(flow, time, seq)
        elif kind in (RECEIVED, RELEASE):
            self._receive(kind, flow, time, seq)
        else:
            self._flow_event(kind, flow, seq)

    def _push(self, time: int, kind: int, flow: _Flow, seq: int = 0) -> None:
        # Packets on their way to the queue keep the order of sending, of whatever flow.
        order = 0 if kind == ARRIVE else flow.number
        heapq.heappush(self._events, (time, kind, order, next(self._count), flow.number, seq))

    def _link_event(self) -> None:
        time = self.link.next_time()
        for packet in self.link.step():
            self._depart(packet, time)

    def _depart(self, packet: Packet, time: int) -> None:
        flow = self.flows[packet.flow]
        record = flow.packets[packet.seq]
        record.departure, record.marked = time, packet.marked
        delay, loss = conditions_at(self.scenario.link, time)
        if lost_at_random(self.scenario.seed, packet.flow, packet.seq, loss):
            return
        back = time + 2 * delay + flow.extra
        if self.scenario.link.shapes_acks:
            flow.newest = max(back, flow.newest)
            self._push(flow.newest, RECEIVED, flow, packet.seq)
        else:
            self._acknowledge(flow, packet.seq, back)

    def _receive(self, kind: int, flow: _Flow, time: int, seq: int) -> None:
        """Let a receiver take a packet, or release the one that it holds: times of its ACKs."""
        link = self.scenario.link
        packets = [seq]
        if kind == RELEASE:
            if flow.unacknowledged != seq:
                return
        else:
            whole, flow.expected = seq == flow.expected, seq + 1
            if link.delayed_acks and whole and flow.unacknowledged is None:
                flow.unacknowledged = seq
                self._push(time + _DELAYED_ACK, RELEASE, flow, seq)
                return
            if flow.unacknowledged is not None:
                packets.insert(0, flow.unacknowledged)
        flow.unacknowledged = None
        time = time_of_ack(self.scenario, flow.number, seq, time)
        for each in packets:
            self._acknowledge(flow, each, time)

    def _acknowledge(self, flow: _Flow, seq: int, time: int) -> None:
        flow.last_ack = max(time, flow.last_ack)
        link, late = self.scenario.link, 0
        if lost_at_random(self.scenario.seed, flow.number + _LATE_FLOW, seq, link.late_share):
            late = round(link.late_ms * 1e6)
        flow.packets[seq].ack = flow.last_ack + late
        self._push(flow.last_ack + late, ACK, flow, seq)

    def _flow_event(self, kind: int, flow: _Flow, seq: int) -> None:
        sender = flow.sender
        if sender is None:
            sender = flow.begin(self.scenario.link, self._step_start, self.now)
            self._continue(flow, sender)
        elif kind == ACK:
            record = flow.packets[seq]
            service = service_at(self.scenario.link, record.departure)
            flow.queueing += max(record.departure - record.arrival - service, 0)
            sender.on_ack(((seq, seq + 1),), now=self.now, marked=int(record.marked))
            flow.marked += record.marked
            flow.delivered += 1
            if flow.delivered == flow.flow.packets:
                flow.completed, flow.stop = self.now, min(flow.stop, self.now)
            self._continue(flow, sender)
        elif flow.planned[kind] == self.now < flow.stop:
            flow.planned[kind] = NEVER
            if kind == PACED:
                if self._has_data(flow, sender):
                    self._send(flow, sender)
                self._plan(flow, sender)
            elif sender.timer_time() == self.now:
                timeouts = sender.rtt.backoff
                sender.on_timer(now=self.now)
                if sender.rtt.backoff > timeouts:
                    self._send(flow, sender)  # whatever the window
                self._continue(flow, sender)
            else:
                self._plan(flow, sender)

    def _continue(self, flow: _Flow, sender: Sender) -> None:
        """Fill an unpaced window, and plan what comes next."""
        if self.now < flow.stop:
            if flow.controller.pacing_rate == 0:
                while self._has_data(flow, sender) and self._send(flow, sender):
                    pass
            self._plan(flow, sender)

    def _plan(self, flow: _Flow, sender: Sender) -> None:
        """Put paced sending and timer into the heap, unless they stand there for earlier."""
        if flow.controller.pacing_rate > 0 and self._has_data(flow, sender):
            self._plan_event(flow, PACED, max(sender.send_time(), self.now))
        self._plan_event(flow, TIMER, sender.timer_time())

    def _plan_event(self, flow: _Flow, kind: int, time: int) -> None:
        if time < min(flow.stop, flow.planned[kind]):
            flow.planned[kind] = time
            self._push(time, kind, flow)

    def _has_data(self, flow: _Flow, sender: Sender) -> bool:
        """Tell whether less than a flow's size is acknowledged or in flight."""
        size = flow.flow.packets
        return size is None or flow.delivered + sender.inflight < size

    def _send(self, flow: _Flow, sender: Sender) -> bool:
        number = sender.packet_to_send(now=self.now)
        if number is None:
            return False
        # The hop before the queue keeps the order of all flows.
        link, name = self.scenario.link, (self.scenario.seed, _HOP_FLOW, flow.number, number)
        jitter = round(link.jitter_ms * 1e6)
        arrival = self.now + wait(link.jitter_kind, jitter, name, self.now)
        self._hop_arrival = max(self._hop_arrival, arrival)
        record = Record(flow.number, self.now, self._hop_arrival, departure=NEVER)
        flow.packets.append(record)
        self.records.append(record)
        if jitter:
            self._push(self._hop_arrival, ARRIVE, flow, number)
        else:
            self._arrive(flow, self.now, number)
        return True

    def _arrive(self, flow: _Flow, time: int, seq: int) -> None:
        packet = Packet(PACKET_BYTES, time, flow.number, seq, flow.flow.takes_marks)
        if (self._policer and not self._policer.passes(packet)) or self.link.arrive(packet):
            self._note_drop(time, packet)

    def _note_drop(self, time: int, packet: Packet) -> None:
        self.flows[packet.flow].packets[packet.seq].departure = -1


def build_link(
    scenario: Scenario, on_drop: Callable[[int, Packet], None] | None = None
) -> RateLink | TraceLink:
    """Build the event-driven link of a scenario; ``on_drop`` is told of drops from the queue."""
    link = scenario.link

    def draw(packet: Packet) -> float:
        lot = _hash(scenario.seed, packet.flow + _LOTTERY_FLOW, packet.seq) >> 10  # 53 bits
        return lot / 2**53

    queue = link.queue.build(unit=1_000_000, draw=draw, on_drop=on_drop)
    if link.trace is not None:
        trace = load_trace(link.trace)
        start = round(link.trace_start_s * NANOSECONDS) % trace.period_ns
        built = TraceLink(trace.times_ns.tolist(), queue, base=-start)
        while built.next_time() <= 0:
            built.step()
        return built
    return RateLink(rate_schedule(link), queue)


def time_of_ack(scenario: Scenario, flow: int, seq: int, time: int) -> int:
    """Return when a packet's ACK comes that came at ``time`` without jitter and ticks, ns."""
    link = scenario.link
    name = scenario.seed, _JITTER_FLOW, flow, seq
    time += wait(link.ack_jitter_kind, round(link.ack_jitter_ms * 1e6), name, time)
    tick = round(link.ack_tick_ms * 1e6) or 1
    return -(-time // tick) * tick


def wait(kind: JitterKind, scale: int, name: tuple[int, int, int, int], time: int) -> int:
    """Return how long jitter holds a packet, ns; ``name``: seed, purpose, flow and number."""
    seed, purpose, flow, seq = name
    if scale == 0:
        return 0
    if kind in ("correlated", "bursts"):
        place, elapsed = divmod(time, 4 * scale)
        bits, following = (_hash(seed, purpose + _NO_FLOW, place + k) for k in (0, 1))
        share, after = bits >> 33, following >> 33
        if kind == "correlated":
            return scale * (share + (after - share) * elapsed // (4 * scale)) >> 30
        pause = scale * share >> 30
        until = ((4 * scale - pause) * (bits % 2**30) >> 30) + pause
        return until - elapsed if until - pause <= elapsed < until else 0
    bits = _hash(seed, purpose + flow, seq)
    if kind == "normal":
        return scale * sum(bits >> 15 * k & 0x7FFF for k in range(4)) >> 17
    if kind == "exponential":
        # In 2**-20 of a halving: 30 bits of hash have at most 30 of them.
        share = bits >> 33 | 1
        zeros = 30 - share.bit_length()
        return scale * ((zeros + 2 << 29) - (share << zeros) >> 9) >> 23
    return scale * (bits >> 33) >> 30


def rate_schedule(link: Link) -> list[tuple[int, int]]:
    """Return a rate link's rates, bit/s, and since when, ns."""
    changes = [(c.at_s, c.rate_mbps) for c in link.changes if c.rate_mbps is not None]
    rates = [(0.0, link.rate_mbps or 0.0), *changes]
    return [(round(at * NANOSECONDS), round(mbps * 1e6)) for at, mbps in rates]


def capacity(link: Link, begin: int, end: int) -> int:
    """Return what a link can carry in (begin, end], 1e-9 bit; before 0 it was as at 0."""
    if link.trace is not None:
        trace = load_trace(link.trace)
        start = round(link.trace_start_s * NANOSECONDS)
        counts = []
        for time in (begin, end):
            periods, rest = divmod(time + start, trace.period_ns)
            counts.append(periods * len(trace.times_ns) + bisect_right(trace.times_ns, rest))
        return (counts[1] - counts[0]) * PACKET_BITS
    if not link.changes:
        return round((link.rate_mbps or 0.0) * 1e6) * max(end - begin, 0)
    schedule = rate_schedule(link)
    starts = [min(begin, 0), *(at for at, _ in schedule[1:]), NEVER]
    return sum(
        rate * max(min(until, end) - max(since, begin), 0)
        for (_, rate), (since, until) in zip(schedule, itertools.pairwise(starts), strict=True)
    )


def best_window(
    scenario: Scenario, number: int, now: int, end: int, spans: Iterable[tuple[int, int]]
) -> Fraction:
    """Return the oracle's window of a flow for a step from ``now`` to ``end``, packets.

    It is an even share, and one more, of the packets that can depart or pass a policer in the round
    trip before ``end``. The flows that run in the step share; ``spans`` are all flows'.
    """
    link = scenario.link
    span = 2 * conditions_at(link, now)[0] + round(scenario.flows[number].extra_rtt_ms * 1e6)
    bits = capacity(link, end - span, end)
    if link.policer_mbps is not None:
        bits = min(bits, round(link.policer_mbps * 1e6) * span)
    active = max(sum(max(start, now) < min(stop, end) for start, stop in spans), 1)
    return Fraction(bits + PACKET_BITS, PACKET_BITS * active)


def service_at(link: Link, departure: int) -> int:
    """Return the transmission time at the rate that a packet departed at, ns; 0 on a trace."""
    if link.trace is not None:
        return 0
    # Nothing departs in an outage, nor before the first rate.
    rates = [rate for at, rate in rate_schedule(link) if rate and at < departure]
    return -(-PACKET_BITS // rates[-1]) if rates else 0


def conditions_at(link: Link, time: int) -> tuple[int, float]:
    """Return one-way delay (ns) and loss probability in force at a time."""
    delay, loss = link.delay_ms, link.loss
    for change in link.changes:
        if round(change.at_s * NANOSECONDS) <= time:
            delay = delay if change.delay_ms is None else change.delay_ms
            loss = loss if change.loss is None else change.loss
    return round(delay * 1e6), loss
