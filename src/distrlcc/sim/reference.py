"""The simulator a second time: event by event, in plain Python, from the same specification.

It shares no code with `distrlcc.sim.kernel` but the scenarios, the link model's constants and the
controllers (which are written once). Queues are explicit, a packet's fate is found when it happens,
and every event stands in a heap. About a thousand times slower, and the judge.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from dataclasses import dataclass

from distrlcc.control.compiled_controller import SchemeController
from distrlcc.control.state import INITIAL_CWND
from distrlcc.sim.link import NEVER, BottleneckLink, RateLink, TraceLink
from distrlcc.sim.queue import DropTail, Packet
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.trace import load_trace
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack

# Ties at one time, in order.
LINK, BOUNDARY, ACK, PACED, TIMER, BEGIN = range(6)
TIMEOUT = NANOSECONDS
_PACKET_BITS = PACKET_BYTES * 8 * NANOSECONDS  # in 1e-9 bit, so that sums are exact
_MASK = (1 << 64) - 1


def lost_at_random(seed: int, flow: int, seq: int, probability: float) -> bool:
    """Tell whether the link loses a packet: SplitMix64 of its name against the probability."""
    z = (seed + (flow << 40) + seq) & _MASK
    z = (z + 0x9E3779B97F4A7C15) * 0x94D049BB133111EB & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return (z ^ (z >> 31)) >> 1 < min(int(probability * 2.0**63), 2**63 - 1)


@dataclass(slots=True)
class Record:
    """One packet's story; -1 is what never happened."""

    flow: int
    sent: int
    departure: int = -1
    ack: int = -1
    delivered: int = 0
    """Delivered count when it was sent."""
    delivered_time: int = 0


class Agent:
    """Window and rate set from outside; the oracle's window is set at each step's start."""

    def __init__(self, flow: Flow) -> None:
        self.cwnd = INITIAL_CWND if flow.cwnd is None else flow.cwnd
        mbps = flow.pacing_mbps or 0.0
        self.pacing_rate = mbps * 1e6 / (8 * PACKET_BYTES)

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Leave the window as it was set."""

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Leave the window as it was set."""


class _Sender:
    def __init__(self, number: int, flow: Flow, seed: int) -> None:
        self.number, self.flow, self.seed = number, flow, seed
        self.start = round(flow.start_s * NANOSECONDS)
        self.stop = NEVER if flow.stop_s is None else round(flow.stop_s * NANOSECONDS)
        self.extra = round(flow.extra_rtt_ms * 1e6)
        self.controller: Agent | SchemeController = Agent(flow)
        self.started = False
        self.packets: list[Record] = []
        self.next_ack = 0
        self.delivered = self.delivered_time = 0
        self.next_send = self.last_activity = self.last_ack = 0
        self.acked = self.lost = self.rtt_sum = self.timeouts = 0
        self.queueing = 0

    def begin(self, now: int) -> None:
        if self.flow.scheme not in ("agent", "oracle"):
            cwnd = INITIAL_CWND if self.flow.cwnd is None else self.flow.cwnd
            self.controller = SchemeController(
                self.flow.scheme, now=now, seed=self.seed, parameter=cwnd
            )
        self.started = True
        self.delivered_time = self.last_activity = self.next_send = now

    @property
    def inflight(self) -> int:
        return len(self.packets) - self.next_ack

    @property
    def window_open(self) -> bool:
        return self.inflight < int(self.controller.cwnd)

    @property
    def interval(self) -> int:
        return int(min(NANOSECONDS / self.controller.pacing_rate, 1e18))


class Reference:
    """One scenario, event by event."""

    def __init__(self, scenario: Scenario) -> None:
        """Set up a scenario at time zero.

        Raises:
            TraceError: The trace cannot be read.
        """
        self.scenario = scenario
        self.link = build_link(scenario.link)
        self.senders = [
            _Sender(k, flow, scenario.seed * 64 + k) for k, flow in enumerate(scenario.flows)
        ]
        self.records: list[Record] = []
        self.now = 0
        self._events: list[tuple[int, int, int, int, int]] = []
        self._count = itertools.count()
        for sender in self.senders:
            if sender.start < sender.stop:
                self._push(sender.start, BEGIN, sender)

    def run(self, step: int) -> None:
        """Advance by a step, ns: fill the windows, then every event before the step's end."""
        end = self.now + step
        # Departures at this instant come before the windows are filled.
        while self.link.next_time() <= self.now:
            self._link_event()
        for sender in self.senders:
            sender.acked = sender.lost = sender.rtt_sum = sender.timeouts = 0
            if sender.flow.scheme == "oracle" and isinstance(sender.controller, Agent):
                sender.controller.cwnd = self.best_window(sender, end)
            if sender.started and self.now < sender.stop:
                if sender.controller.pacing_rate > 0:
                    due = max(sender.next_send, self.now)
                    sender.next_send = min(due, self.now + sender.interval)
                    self._push_paced(sender)
                else:
                    self._fill(sender)
        while True:
            time = min(self.link.next_time(), self._events[0][0] if self._events else NEVER)
            if time >= end:
                break
            self.now = time
            if self.link.next_time() == time:
                self._link_event()
            else:
                _, kind, flow, _, stamp = heapq.heappop(self._events)
                self._flow_event(kind, self.senders[flow], stamp)
        self.now = end

    def best_window(self, sender: _Sender, end: int) -> int:
        """Return the oracle's window for a step from now to ``end``, packets.

        It is an even share, rounded up, of what can depart in the round trip before ``end``, and
        one more; the flows that may send in the step share it.
        """
        delay, _ = conditions_at(self.scenario.link, self.now)
        bits = capacity(self.scenario.link, end - 2 * delay - sender.extra, end)
        active = [s for s in self.senders if max(s.start, self.now) < min(s.stop, end)]
        return -(-(bits + _PACKET_BITS) // (_PACKET_BITS * max(len(active), 1)))

    def drain(self) -> None:
        """Let every queued packet depart, with nothing sent any more."""
        while any(r.departure == NEVER for r in self.records):
            self._link_event()

    def _push(self, time: int, kind: int, sender: _Sender, stamp: int = 0) -> None:
        heapq.heappush(self._events, (time, kind, sender.number, next(self._count), stamp))

    def _link_event(self) -> None:
        time = self.link.next_time()
        for packet in self.link.step():
            self._depart(packet, time)

    def _depart(self, packet: Packet, time: int) -> None:
        sender = self.senders[packet.flow]
        record = sender.packets[packet.seq]
        record.departure = time
        delay, loss = conditions_at(self.scenario.link, time)
        if lost_at_random(self.scenario.seed, packet.flow, packet.seq, loss):
            return
        record.ack = sender.last_ack = max(time + 2 * delay + sender.extra, sender.last_ack)
        self._push(record.ack, ACK, sender, packet.seq)

    def _flow_event(self, kind: int, sender: _Sender, stamp: int) -> None:
        active = self.now < sender.stop
        if kind == ACK:
            self._acknowledge(sender, stamp)
        elif kind == PACED:
            if active and stamp == sender.next_send and sender.window_open:
                sender.next_send = self.now + sender.interval
                self._send(sender)
                self._push_paced(sender)
        elif kind == TIMER:
            if active and stamp == sender.last_activity:
                sender.timeouts += 1
                sender.controller.on_timeout(now=self.now, sent=len(sender.packets))
                sender.next_send = max(sender.next_send, self.now)
                self._send(sender)
                self._push_paced(sender)
        else:
            sender.begin(self.now)
            if sender.controller.pacing_rate > 0:
                self._push_paced(sender)
            else:
                self._fill(sender)
            self._push(self.now + TIMEOUT, TIMER, sender, self.now)

    def _acknowledge(self, sender: _Sender, seq: int) -> None:
        record = sender.packets[seq]
        lost = seq - sender.next_ack
        sender.next_ack = seq + 1
        sender.delivered += 1
        elapsed = max(self.now - record.delivered_time, 1)
        rate = (sender.delivered - record.delivered) * float(NANOSECONDS) / elapsed
        sender.delivered_time = sender.last_activity = self.now
        self._push(self.now + TIMEOUT, TIMER, sender, self.now)
        rtt = self.now - record.sent
        sender.acked += 1
        sender.lost += lost
        sender.rtt_sum += rtt
        service = service_at(self.scenario.link, record.departure)
        sender.queueing += max(record.departure - record.sent - service, 0)
        ack = Ack(
            rtt_ns=rtt,
            seq=seq,
            sent=len(sender.packets),
            lost=lost,
            inflight=sender.inflight,
            delivered=sender.delivered,
            prior_delivered=record.delivered,
            delivery_rate=rate,
        )
        sender.controller.on_ack(ack, now=self.now)
        if sender.controller.pacing_rate > 0:
            sender.next_send = max(sender.next_send, self.now)
            self._push_paced(sender)
        elif self.now < sender.stop:
            self._fill(sender)

    def _push_paced(self, sender: _Sender) -> None:
        if sender.controller.pacing_rate > 0 and sender.window_open:
            self._push(sender.next_send, PACED, sender, sender.next_send)

    def _fill(self, sender: _Sender) -> None:
        while sender.window_open:
            self._send(sender)

    def _send(self, sender: _Sender) -> None:
        record = Record(
            sender.number,
            self.now,
            departure=NEVER,
            delivered=sender.delivered,
            delivered_time=sender.delivered_time,
        )
        packet = Packet(PACKET_BYTES, self.now, sender.number, len(sender.packets))
        sender.packets.append(record)
        self.records.append(record)
        if self.link.arrive(packet):
            record.departure = -1
        sender.last_activity = self.now
        self._push(self.now + TIMEOUT, TIMER, sender, self.now)


def build_link(link: Link) -> BottleneckLink:
    """Build the event-driven link of a scenario."""
    queue = DropTail(link.queue_packets, link.queue_bytes)
    if link.trace is not None:
        trace = load_trace(link.trace)
        start = round(link.trace_start_s * NANOSECONDS) % trace.period_ns
        built = TraceLink(trace.times_ns.tolist(), queue, base=-start)
        while built.next_time() <= 0:
            built.step()
        return built
    return RateLink(rate_schedule(link), queue)


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
        return (counts[1] - counts[0]) * _PACKET_BITS
    schedule = rate_schedule(link)
    starts = [min(begin, 0), *(at for at, _ in schedule[1:]), NEVER]
    return sum(
        rate * max(min(until, end) - max(since, begin), 0)
        for (_, rate), (since, until) in zip(schedule, itertools.pairwise(starts), strict=True)
    )


def service_at(link: Link, departure: int) -> int:
    """Return the transmission time at the rate that a packet departed at, ns; 0 on a trace."""
    if link.trace is not None:
        return 0
    mbps = link.rate_mbps or 0.0
    for change in link.changes:
        if change.rate_mbps is not None and round(change.at_s * NANOSECONDS) < departure:
            mbps = change.rate_mbps
    return -(-PACKET_BYTES * 8 * NANOSECONDS // round(mbps * 1e6))


def conditions_at(link: Link, time: int) -> tuple[int, float]:
    """Return one-way delay (ns) and loss probability in force at a time."""
    delay, loss = link.delay_ms, link.loss
    for change in link.changes:
        if round(change.at_s * NANOSECONDS) <= time:
            delay = delay if change.delay_ms is None else change.delay_ms
            loss = loss if change.loss is None else change.loss
    return round(delay * 1e6), loss
