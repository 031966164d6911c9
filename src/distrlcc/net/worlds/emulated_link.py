"""One scenario's link in real time: queue, bottleneck, random loss, delay, and what it offered.

Sans-IO, and event for event the reference simulator's link: the same `RateLink` or `TraceLink`, the
same losses for a seed. A packet's acknowledgement is due twice the one-way delay after it has left
the bottleneck, so that one delay serves both directions. Times are ns since the link's beginning.
"""

from typing import NamedTuple

from distrlcc.errors import ConfigError
from distrlcc.sim import reference
from distrlcc.sim.link import NEVER, TraceLink
from distrlcc.sim.queues import Packet
from distrlcc.sim.reference import PACKET_BITS, capacity, conditions_at
from distrlcc.sim.scenario import Scenario
from distrlcc.types import NANOSECONDS


class Delivery(NamedTuple):
    """A packet that came through."""

    flow: int
    number: int
    size: int  # bytes on the wire
    time: int  # when its acknowledgement reaches the sender, ns


class EmulatedLink:
    """A bottleneck that many flows may share."""

    def __init__(self, scenario: Scenario) -> None:
        """Start at time zero; raises TraceError, and ConfigError where it cannot be emulated."""
        if scenario.link.is_live or scenario.link.reorder:
            raise ConfigError(
                f"{scenario.name}: links of world=emulated and world=kernel have a droptail alone: "
                "take one without aqm, jitter_ms, policer_mbps and reorder, or world=simulated"
            )
        if any(flow.packets is not None for flow in scenario.flows):
            raise ConfigError(
                f"{scenario.name}: flows of a size are for world=simulated: take one whose flows "
                "have stop_s in place of packets"
            )
        self.scenario = scenario
        self._link = reference.build_link(scenario)
        self._extra = [round(flow.extra_rtt_ms * 1e6) for flow in scenario.flows]
        # Packets of a flow never overtake, and neither do their ACKs.
        self._newest, self._last = [0] * len(scenario.flows), [0] * len(scenario.flows)
        self._waiting = 0  # packets, the one in service among them
        self._begun = NEVER  # when the packet in service came to it
        self._bits = 0  # of the packets that departed

    def next_time(self) -> int:
        """Return when `advance` has something to do, ns."""
        link = self._link
        return NEVER if isinstance(link, TraceLink) and not link.queued else link.next_time()

    def advance(self, *, now: int) -> list[Delivery]:
        """Do what is due up to a time; return what has left the bottleneck."""
        link = self._link
        deliveries: list[Delivery] = []
        while (time := link.next_time()) <= now:
            if isinstance(link, TraceLink) and not link.queued:
                link.skip(now=now)
                break
            for packet in link.step():
                self._depart(packet, time, deliveries)
        return deliveries

    def arrive(self, flow: int, number: int, size: int, *, now: int) -> None:
        """Queue a packet of ``size`` bytes on the wire; call `advance` with this time before."""
        if not self._link.arrive(Packet(size, now, flow, number)):
            self._waiting += 1
            self._begun = min(self._begun, now)

    def _depart(self, packet: Packet, time: int, deliveries: list[Delivery]) -> None:
        flow = packet.flow
        self._bits += packet.size * 8 * NANOSECONDS
        self._waiting -= 1
        self._begun = time if self._waiting else NEVER
        delay, loss = conditions_at(self.scenario.link, time)
        if loss and reference.lost_at_random(self.scenario.seed, flow, packet.seq, loss):
            return
        back = self._newest[flow] = max(time + 2 * delay + self._extra[flow], self._newest[flow])
        due = reference.time_of_ack(self.scenario, flow, packet.seq, back)
        due = self._last[flow] = max(due, self._last[flow])
        deliveries.append(Delivery(flow, packet.seq, packet.size, due))

    def used(self, *, now: int) -> float:
        """Return how much was carried up to a time, packets, the one in service counted in part."""
        bits = self._bits
        if self.scenario.link.trace is None and self._begun < now:
            bits += min(capacity(self.scenario.link, self._begun, now), PACKET_BITS)
        return bits / PACKET_BITS

    def offered(self, begin: int, end: int) -> float:
        """Return how much could be carried in a time, packets."""
        return capacity(self.scenario.link, begin, end) / PACKET_BITS

    def base_rtt(self, *, now: int) -> float:
        """Return the first flow's round trip without a queue, s."""
        link = self.scenario.link
        delay, _ = conditions_at(link, now)
        base = (2 * delay + self._extra[0]) / NANOSECONDS
        if link.trace is None:
            rate = self.offered(now, now + 1) * NANOSECONDS
            base += 1 / rate if rate else 0.0
        return base

    def handshake(self, flow: int, now: int) -> int:
        """Return what a flow's handshake would take, ns."""
        return 2 * conditions_at(self.scenario.link, now)[0] + self._extra[flow]

    def best_window(self, step: int, *, now: int) -> float:
        """Return the oracle's window for a step of ``step`` ns, packets."""
        spans = (flow.span_ns for flow in self.scenario.flows)
        return float(reference.best_window(self.scenario, 0, now, now + step, spans))
