"""Emulated links between real sockets: datagrams in, acknowledgements out.

Each flow has a relay socket of its own on loopback. What arrives there passes the flow's link,
which counts it with its headers, then `distrlcc.transport.receiver`, and an ACK goes back to the
address that the datagram came from. The delay of both directions is spent before the receiver, as
no sender can tell; so each packet and each ACK crosses the kernel once.

Memory is bounded by the senders' windows: a packet on the link is its number, not its bytes.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from distrlcc.errors import WireError
from distrlcc.net.agenda import Agenda, Task
from distrlcc.net.emulated_link import Delivery, EmulatedLink
from distrlcc.net.udp_socket import Address, UdpSocket
from distrlcc.sim.link import NEVER
from distrlcc.sim.scenario import Scenario
from distrlcc.transport import wire
from distrlcc.transport.receiver import Receiver
from distrlcc.transport.wire import Data

LOOPBACK = "127.0.0.1"
OVERHEAD_BYTES = 32
"""IPv4 and UDP headers and mahimahi's 4 bytes of TUN header: 1472 bytes count 1504."""

_MOST_SLACK_NS = 5_000_000


class RelayFlow:
    """The far end of one flow: its socket, its receiver, and what is on the way to it."""

    def __init__(self, number: int, session: int, key: bytes) -> None:
        """Open a socket on a free port.

        Args:
            number: The flow's place in its scenario.
            session: The only one whose datagrams are taken.
            key: Of its ACKs.
        """
        self.number, self.session, self.key = number, session, key
        self.socket = UdpSocket(bind=(LOOPBACK, 0))
        self.receiver = Receiver(session)
        self.lowest = 0
        """Least number that the sender waits for, as it last said."""
        self.expected = 0
        """Number of the next datagram; loopback keeps their order."""
        self.sender: Address = ()
        """Where its ACKs go."""
        self.flying: deque[tuple[int, int, int]] = deque()
        """(time, ns; number; UDP payload bytes) of what is due."""


class RelayLink:
    """One link, its flows' sockets, and its events on an agenda of the machine's time."""

    def __init__(
        self, scenario: Scenario, agenda: Agenda, *, first_session: int, key: bytes
    ) -> None:
        """Open the flows' sockets; the link stands still until `begin`.

        Args:
            scenario: The link and its flows.
            agenda: Runs this.
            first_session: The first flow's session; the others' follow.
            key: Of the ACKs.

        Raises:
            LinkError: There are no more sockets.
            TraceError: The trace cannot be read.
        """
        self.link = EmulatedLink(scenario)
        self.flows = [
            RelayFlow(number, first_session + number, key) for number in range(len(scenario.flows))
        ]
        self.hidden_losses = 0
        """Datagrams that never came here: the kernel had no room for them."""
        self.ignored = 0
        """Datagrams that were malformed or stray."""
        self.origin = 0
        """When the link began, ns."""
        changes = (change.delay_ms for change in scenario.link.changes)
        delays = [scenario.link.delay_ms, *(delay for delay in changes if delay is not None)]
        # The link's events are exact whenever they are found, as long as no ACK is due before.
        self._slack = min(round(min(delays) * 1e6), _MOST_SLACK_NS)
        self._agenda = agenda
        self._advancing = Task(self.advance)
        self._delivering = [Task(partial(self._deliver, flow)) for flow in self.flows]

    def begin(self, *, now: int) -> None:
        """Let the link's time begin."""
        self.origin = now
        self._plan()

    def close(self) -> None:
        """Close the sockets; nothing runs any more."""
        for task in (self._advancing, *self._delivering):
            task.planned = NEVER
        for flow in self.flows:
            flow.socket.__exit__()

    def receive(self, flow: RelayFlow, now: int) -> None:
        """Take what has come to a flow's socket."""
        link, time = self.link, now - self.origin
        self._send_off(link.advance(now=time))
        for datagram, address in flow.socket.receive(1):
            data = self._decode(datagram, flow)
            if data is None:
                continue
            flow.sender, flow.lowest = address, data.lowest
            self.hidden_losses += data.number - flow.expected
            flow.expected = data.number + 1
            link.arrive(flow.number, data.number, len(datagram) + OVERHEAD_BYTES, now=time)
        self._plan()

    def _decode(self, datagram: bytes, flow: RelayFlow) -> Data | None:
        try:
            data = wire.decode(datagram)
        except WireError:
            data = None
        if isinstance(data, Data) and data.session == flow.session and data.number >= flow.expected:
            return data
        self.ignored += 1
        return None

    def advance(self, now: int) -> None:
        """Do what is due on the link."""
        self._send_off(self.link.advance(now=now - self.origin))
        self._plan()

    def _plan(self) -> None:
        time = self.link.next_time()
        if time < NEVER:
            self._agenda.plan(self._advancing, self.origin + time + self._slack)

    def _send_off(self, deliveries: list[Delivery]) -> None:
        """Let what has left the bottleneck travel on."""
        for number, packet, size, time in deliveries:
            due = self.origin + time
            self.flows[number].flying.append((due, packet, size - OVERHEAD_BYTES))
            self._agenda.plan(self._delivering[number], due)

    def _deliver(self, flow: RelayFlow, now: int) -> None:
        """Hand the receiver what has reached it, and acknowledge it at once."""
        flying, receiver = flow.flying, flow.receiver
        while flying and flying[0][0] <= now:
            _, number, size = flying.popleft()
            receiver.on_data(number, size, flow.lowest, now=now)
        ack = receiver.ack_to_send(now=now)
        if ack is not None:
            flow.socket.send([wire.encode_ack(ack, flow.key)], flow.sender)
        if flying:
            self._agenda.plan(self._delivering[flow.number], flying[0][0])
