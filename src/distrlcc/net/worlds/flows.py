"""Emulated links between real sockets in one loop: senders, the link's far end, and their timers.

`SendingFlow` drives one `distrlcc.transport.sender.Sender`, the one that ``distrlcc send`` runs, to
a `RelayFlow`'s socket on loopback. An agent's window and rate are held from outside; a rival is
steered by its scheme. A datagram that arrives at the relay passes the flow's link, which counts it
with its headers, then `distrlcc.transport.receiver`, and an ACK goes back. Both directions' delay
is spent before the receiver, which no sender can tell: each packet and each ACK crosses the kernel
once. Memory is bounded by the senders' windows: a packet on the link is its number, not its bytes.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from secrets import randbits, token_bytes

from distrlcc.control.base import Controller, Held
from distrlcc.control.schemes import SchemeController
from distrlcc.errors import WireError
from distrlcc.net.kernel.flow import TcpFlow
from distrlcc.net.sending import BATCH, next_batch
from distrlcc.net.udp_socket import UdpSocket
from distrlcc.net.worlds.emulated_link import Delivery, EmulatedLink
from distrlcc.sim.link import NEVER
from distrlcc.sim.scenario import Flow, Scenario
from distrlcc.transport import wire
from distrlcc.transport.handshake import Address
from distrlcc.transport.receiver import Receiver
from distrlcc.transport.sender import Sender
from distrlcc.transport.wire import Acknowledgement, Data
from distrlcc.types import IntervalStats

LOOPBACK = "127.0.0.1"
DATAGRAM_BYTES = 1472
OVERHEAD_BYTES = 32  # IPv4 and UDP headers and mahimahi's 4 of TUN header: 1472 bytes count 1504
_PADDING = bytes(DATAGRAM_BYTES - wire.DATA_BYTES)
_MOST_SLACK_NS = 5_000_000
_STATS = IntervalStats.names()


class Timer:
    """Something that `Timers` runs with the time, ns; `NEVER` as ``planned`` drops it."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self.run, self.planned = run, NEVER


class Timers:
    """Timers by their times."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = itertools.count()

    def set(self, timer: Timer, time: int) -> None:
        """Run a timer at a time, ns, unless it runs before that already."""
        if time < timer.planned:
            timer.planned = time
            heapq.heappush(self._heap, (time, next(self._count), timer))

    def next_time(self) -> int:
        """Return when `run` has something to do, ns; it may turn out to be nothing."""
        return self._heap[0][0] if self._heap else NEVER

    def run(self, *, now: int) -> None:
        """Run what is due at a time, but not what is planned for it meanwhile."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            time, _, timer = heapq.heappop(heap)
            if timer.planned == time:
                timer.planned = NEVER
                due.append(timer)
        for timer in due:
            timer.run(now)


class SendingFlow:
    """One sender and its socket."""

    def __init__(
        self,
        flow: Flow,
        session: int,
        remote: Address,
        timers: Timers,
        *,
        seed: int,
        rtt: Callable[[int], int],
    ) -> None:
        """Open the socket; ``rtt`` says what a handshake takes at a time of the link, ns."""
        self.flow, self.session, self.seed, self._rtt = flow, session, seed, rtt
        self.is_agent = flow.scheme == "agent"
        self.socket = UdpSocket(connect=remote)
        self.sender: Sender | None = None  # None before it starts
        self.held = Held(*flow.first_held)  # window and rate that an agent has set
        self.silent = False  # whether nothing is sent, whatever window and rate allow
        self._timers, self._acting, self._stop = timers, Timer(self._act), NEVER
        self._start = NEVER

    def begin(self, *, now: int) -> None:
        """Begin the scenario's time: the flow starts at its start time."""
        start, stop = self.flow.span_ns
        self._start, self._stop = now + start, now + stop
        if start > 0:
            self._timers.set(self._acting, self._start)
        else:
            self._act(now)

    def close(self) -> None:
        """Close the socket; nothing runs any more."""
        self._acting.planned = NEVER
        self.socket.__exit__()

    def hold(self, cwnd: float, pacing_rate: float, *, now: int) -> None:
        """Set an agent's window, packets, and pacing rate, packets/s, and act on them."""
        self.held.cwnd, self.held.pacing_rate = cwnd, pacing_rate
        if self.sender is not None and self.is_agent:
            self.sender.on_action(now=now)
            self._send(self.sender, now)

    def wake(self, *, now: int) -> None:
        """Send again after a silence."""
        if self.silent:
            self.silent = False
            if now >= self._start:
                self._act(now)

    def receive(self, now: int) -> None:
        """Receive ACKs; what is no ACK of this session is ignored."""
        sender = self.sender
        if sender is None:
            return
        for datagram, _ in self.socket.receive(1):
            with suppress(WireError):
                ack = wire.decode(datagram)
                if isinstance(ack, Acknowledgement) and ack.session == self.session:
                    sender.on_ack(ack.ranges, now=now)
        self._send(sender, now)

    def take_interval(self, *, now: int) -> list[float]:
        """Return what was seen since the last call, as `IntervalStats`; 0s before the start."""
        if self.sender is None:
            return [0.0] * len(_STATS)
        stats = self.sender.take_interval(now=now)
        return [float(getattr(stats, name)[0]) for name in _STATS]

    def _act(self, now: int) -> None:
        if self.silent or now >= self._stop:
            return
        if self.sender is None:
            controller: Controller = self.held
            if not self.is_agent:
                controller = SchemeController(
                    self.flow.scheme, now=now, seed=self.seed, parameter=self.held.cwnd
                )
            self.sender = Sender(controller, now=now, first_rtt=self._rtt(self.flow.span_ns[0]))
        elif self.sender.timer_time() <= now:
            self.sender.on_timer(now=now)
        self._send(self.sender, now)

    def _send(self, sender: Sender, now: int) -> None:
        """Send what may be sent, in one go, and plan what comes next."""
        if self.silent or now >= self._stop:
            return
        batch = next_batch(sender, self.session, _PADDING, now=now)
        self.socket.send(batch)
        self._timers.set(self._acting, now if len(batch) == BATCH else sender.next_time())


class RelayFlow:
    """The far end of one flow: its socket, its receiver, and what is on the way to it."""

    def __init__(self, number: int, session: int, key: bytes) -> None:
        self.number, self.session, self.key = number, session, key
        self.socket = UdpSocket(bind=(LOOPBACK, 0))
        self.receiver = Receiver(session)
        self.lowest = 0  # least number that the sender waits for, as it last said
        self.expected = 0  # number of the next datagram; loopback keeps their order
        self.sender: Address = ()  # where its ACKs go
        self.flying: deque[tuple[int, int, int]] = deque()  # (time, ns; number; UDP payload) due

    def deliver(self, now: int) -> None:
        """Pass what has arrived to the receiver, and acknowledge it at once."""
        flying, receiver = self.flying, self.receiver
        while flying and flying[0][0] <= now:
            _, number, size = flying.popleft()
            receiver.on_data(number, size, self.lowest)
            if receiver.ack_is_full:
                self._acknowledge()
        self._acknowledge()

    def _acknowledge(self) -> None:
        ack = self.receiver.ack_to_send()
        if ack is not None:
            self.socket.send([wire.encode_ack(ack, self.key)], self.sender)

    def close(self) -> None:
        """Close the socket."""
        self.socket.__exit__()


class RelayLink:
    """One link, its flows' sockets, and its events on timers of the machine's time."""

    def __init__(self, scenario: Scenario, timers: Timers, agent: TcpFlow | None = None) -> None:
        self.link = EmulatedLink(scenario)
        first, count, key = randbits(62), len(scenario.flows), token_bytes(32)
        self.relayed = [
            RelayFlow(number, first + number, key) for number in range(agent is not None, count)
        ]
        """The flows except an agent that is its own receiver."""
        self.flows: list[TcpFlow | RelayFlow] = [*filter(None, [agent]), *self.relayed]
        self.origin = 0  # when the link began, ns
        changes = (change.delay_ms for change in scenario.link.changes)
        delays = [scenario.link.delay_ms, *(delay for delay in changes if delay is not None)]
        # The link's events are exact whenever they are found, as long as no ACK is due before.
        self._slack = min(round(min(delays) * 1e6), _MOST_SLACK_NS)
        self._timers = timers
        self._advancing = Timer(self.advance)
        self._delivering = [Timer(partial(self._deliver, flow)) for flow in self.flows]

    def begin(self, *, now: int) -> None:
        """Begin the link's time."""
        self.origin = now
        self._plan()

    def close(self) -> None:
        """Close the sockets; nothing runs any more."""
        for timer in (self._advancing, *self._delivering):
            timer.planned = NEVER
        for flow in self.flows:
            flow.close()

    def arrive(self, flow: int, packets: Iterable[tuple[int, int]], now: int) -> None:
        """Queue packets, each a number and its bytes on the wire."""
        time = now - self.origin
        self._send_off(self.link.advance(now=time))
        for number, size in packets:
            self.link.arrive(flow, number, size, now=time)
        self._plan()

    def receive(self, flow: RelayFlow, now: int) -> None:
        """Take what has come to a flow's socket."""
        packets = []
        for datagram, address in flow.socket.receive(1):
            with suppress(WireError):
                data = wire.decode(datagram)
                if not isinstance(data, Data) or data.session != flow.session:
                    continue
                if data.number >= flow.expected:
                    flow.sender, flow.lowest = address, data.lowest
                    flow.expected = data.number + 1
                    packets.append((data.number, len(datagram) + OVERHEAD_BYTES))
        self.arrive(flow.number, packets, now)

    def advance(self, now: int) -> None:
        """Do what is due on the link."""
        self.arrive(0, (), now)

    def _plan(self) -> None:
        time = self.link.next_time()
        if time < NEVER:
            self._timers.set(self._advancing, self.origin + time + self._slack)

    def _send_off(self, deliveries: list[Delivery]) -> None:
        for number, packet, size, time in deliveries:
            due = self.origin + time
            self.flows[number].flying.append((due, packet, size - OVERHEAD_BYTES))
            self._timers.set(self._delivering[number], due)

    def _deliver(self, flow: RelayFlow | TcpFlow, now: int) -> None:
        flow.deliver(now)
        if flow.flying:
            self._timers.set(self._delivering[flow.number], flow.flying[0][0])
