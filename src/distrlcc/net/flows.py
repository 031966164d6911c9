"""Senders over real sockets in one loop: what each may send, hears and has seen in a step.

`SendingFlow` drives one `distrlcc.transport.sender.Sender`, the one that ``distrlcc send`` runs, to
a `RelayFlow`'s socket. An agent's window and rate are held from outside; a rival is steered by its
scheme.
"""

from __future__ import annotations

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import INITIAL_CWND
from distrlcc.errors import WireError
from distrlcc.net.agenda import Agenda, Task
from distrlcc.net.udp_socket import Address, UdpSocket
from distrlcc.sim.link import NEVER
from distrlcc.sim.scenario import Flow
from distrlcc.transport import wire
from distrlcc.transport.messages import Acknowledgement
from distrlcc.transport.sender import Sender, SenderOptions
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack, IntervalStats

DATAGRAM_BYTES = 1472
_PADDING = bytes(DATAGRAM_BYTES - wire.DATA_BYTES)
_BATCH = 32
"""Datagrams that a flow sends before the others have their turn; a socket's buffer holds more."""


class Held:
    """A controller whose window and rate are set from outside."""

    def __init__(self, cwnd: float, pacing_rate: float) -> None:
        """Take the first window, packets, and pacing rate, packets/s."""
        self.cwnd, self.pacing_rate = cwnd, pacing_rate

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Leave the window as it was set."""

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Leave the window as it was set."""

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Leave the window as it was set."""


class SendingFlow:
    """One sender and its socket."""

    def __init__(
        self, flow: Flow, session: int, remote: Address, agenda: Agenda, *, seed: int
    ) -> None:
        """Open the socket; nothing is sent before `begin`.

        Args:
            flow: When it sends, and how it is steered.
            session: Its session's number.
            remote: Where to send to.
            agenda: Runs this.
            seed: Of its scheme's draws.

        Raises:
            LinkError: There are no more sockets.
        """
        self.flow, self.session, self.seed = flow, session, seed
        self.socket = UdpSocket(connect=remote)
        self.sender: Sender | None = None
        """None before it starts."""
        self.held = Held(INITIAL_CWND if flow.cwnd is None else flow.cwnd, 0.0)
        """What an agent holds."""
        self.silent = False
        """Whether nothing is sent, whatever window and rate allow."""
        self.ignored = 0
        """Datagrams that were no ACKs of this session."""
        self._agenda = agenda
        self._starting, self._acting = Task(self._start), Task(self._act)
        self._stop = NEVER

    @property
    def is_agent(self) -> bool:
        """Whether window and rate are set from outside."""
        return self.flow.scheme == "agent"

    def begin(self, *, now: int) -> None:
        """Let the scenario's time begin: the flow starts when its time comes."""
        flow = self.flow
        if flow.stop_s is not None:
            self._stop = now + round(flow.stop_s * NANOSECONDS)
        if flow.start_s > 0:
            self._agenda.plan(self._starting, now + round(flow.start_s * NANOSECONDS))
        else:
            self._start(now)

    def close(self) -> None:
        """Close the socket; nothing runs any more."""
        self._starting.planned = self._acting.planned = NEVER
        self.socket.__exit__()

    def hold(self, cwnd: float, pacing_rate: float, *, now: int) -> None:
        """Set an agent's window, packets, and pacing rate, packets/s, and act on them."""
        self.held.cwnd, self.held.pacing_rate = cwnd, pacing_rate
        if self.sender is not None and self.is_agent:
            self.sender.on_action(now=now)
            self._send(self.sender, now)

    def receive(self, now: int) -> None:
        """Take what has come."""
        sender = self.sender
        for datagram, _ in self.socket.receive(1):
            try:
                ack = wire.decode(datagram)
            except WireError:
                ack = None
            if not isinstance(ack, Acknowledgement) or ack.session != self.session:
                self.ignored += 1
            elif sender is not None:
                sender.on_ack(ack.ranges, 1000 * ack.delay_us, now=now)
        if sender is not None:
            self._send(sender, now)

    def take_interval(self, *, now: int) -> IntervalStats | None:
        """Return what was seen since the last call, arrays ``[1]``; None before the start."""
        return None if self.sender is None else self.sender.take_interval(now=now)

    def _start(self, now: int) -> None:
        controller: Controller = self.held
        if not self.is_agent:
            controller = SchemeController(
                self.flow.scheme, now=now, seed=self.seed, parameter=self.held.cwnd
            )
        options = SenderOptions(packet_bytes=PACKET_BYTES)
        self.sender = Sender(controller, options, now=now)
        self._send(self.sender, now)

    def _act(self, now: int) -> None:
        sender = self.sender
        assert sender is not None
        if self.silent or now >= self._stop:
            return
        if sender.timer_time() <= now:
            sender.on_timer(now=now)
        self._send(sender, now)

    def _send(self, sender: Sender, now: int) -> None:
        """Send what may be sent, in one go, and plan what comes next."""
        if self.silent or now >= self._stop:
            return
        batch: list[bytes] = []
        while len(batch) < _BATCH:
            lowest = sender.lowest
            number = sender.packet_to_send(now=now)
            if number is None:
                break
            batch.append(wire.data_header(self.session, number, lowest) + _PADDING)
        if batch:
            self.socket.send(batch)
        self._agenda.plan(self._acting, now if len(batch) == _BATCH else sender.next_time())
