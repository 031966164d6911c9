"""Receives flows over a real socket: admits senders, acknowledges, and tells how each flow went."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from distrlcc.errors import WireError
from distrlcc.limits import limits
from distrlcc.net.udp_socket import UdpSocket
from distrlcc.transport import wire
from distrlcc.transport.handshake import Address, Admission, Session
from distrlcc.transport.receiver import Receiver
from distrlcc.types import NANOSECONDS


@dataclass(frozen=True)
class Received:
    """How a flow went."""

    address: Address
    seconds: float
    packets: int
    bytes: int  # UDP payload, duplicates left out
    duplicates: int
    reordered: int
    failure: str = ""  # why it did not end well, one line

    @property
    def mbps(self) -> float:
        """Payload throughput, Mbit/s."""
        return self.bytes * 8e-6 / self.seconds if self.seconds else 0.0


class _Incoming:
    def __init__(self, session: Session, *, now: int) -> None:
        self.session, self.receiver = session, Receiver(session.number)
        self.began = self.heard = now
        self.ended_at: int | None = None


class ReceiveServer:
    """Serves a socket until it is stopped."""

    def __init__(
        self,
        socket: UdpSocket,
        *,
        silence_s: float = 30.0,
        count: int = 0,
        on_begin: Callable[[Session], None] = lambda _: None,
        on_end: Callable[[Received], None] = lambda _: None,
    ) -> None:
        """Prepare, on a bound socket; it ends after ``count`` flows, 0: never.

        A sender that sends nothing new for ``silence_s`` is dropped; if its place is wanted, after
        the limit ``call``.
        """
        self._socket, self._silence_s, self._count = socket, silence_s, count
        self._on_begin, self._on_end = on_begin, on_end
        self._admission = Admission(self._make_room)
        self._incoming: dict[int, _Incoming] = {}
        self._ended = 0

    @property
    def counts(self) -> Counter[str]:
        """Numbers of datagrams that belonged to no flow; see `Admission.counts`."""
        return self._admission.counts

    def run(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Serve until ``stopping`` says so, or the flows are over; return how many ended."""
        while not stopping() and not (self._admission.ending and not self._incoming):
            self._socket.wait(monotonic_ns() + round(limits().tick * NANOSECONDS))
            self._receive(self._socket.receive(), monotonic_ns())
            self._drop_silent(monotonic_ns())
        for incoming in self._incoming.values():
            self._end(incoming, monotonic_ns(), "this receiver was stopped")
        return self._ended

    def _receive(self, datagrams: list[tuple[bytes, Address]], now: int) -> None:
        """Take a batch of datagrams, and acknowledge it with few ACKs for each session."""
        # Sort it by session; a datagram of none asks for admission, or is stray.
        touched: dict[int, _Incoming] = {}
        for datagram, address in datagrams:
            try:
                data = wire.decode(datagram)
            except WireError:  # of another version, perhaps
                data = None
            incoming = self._incoming.get(data.session) if isinstance(data, wire.Data) else None
            if not isinstance(data, wire.Data) or incoming is None:
                self._admit(datagram, address, now)
            elif incoming.session.address != address:
                self.counts["stray"] += 1
            elif data.fin or incoming.ended_at is None:
                if data.fin and incoming.ended_at is None:
                    incoming.heard = now
                    cut = data.number == 0 < incoming.receiver.packets
                    self._end(incoming, now, "the sender gave up" * cut)
                if not incoming.receiver.packets and not data.fin:
                    incoming.began = now  # a sender may wait before its first packet
                new = incoming.receiver.on_data(data.number, len(datagram), data.lowest)
                if new and incoming.ended_at is None:
                    incoming.heard = now
                touched[data.session] = incoming
                if incoming.receiver.ack_is_full:
                    self._acknowledge(incoming)
        for incoming in touched.values():
            self._acknowledge(incoming)

    def _acknowledge(self, incoming: _Incoming) -> None:
        ack, session = incoming.receiver.ack_to_send(), incoming.session
        if ack is not None:
            self._socket.send([wire.encode_ack(ack, session.key)], session.address)

    def _admit(self, datagram: bytes, address: Address, now: int) -> None:
        reply, session = self._admission.on_datagram(datagram, address)
        if session is not None:
            self._incoming[session.number] = _Incoming(session, now=now)
            self._on_begin(session)
        if reply is not None:
            self._socket.send([reply], address)

    def _drop_silent(self, now: int) -> None:
        for incoming in list(self._incoming.values()):
            since, limit = incoming.heard, self._silence_s
            if incoming.ended_at is not None:
                # A sender that missed the ACK of its FIN sends it again.
                since, limit = incoming.ended_at, limits().kill
            if now - since > limit * NANOSECONDS:
                self._drop(incoming, now)

    def _make_room(self, sessions: Sequence[Session]) -> bool:
        """Drop the quietest of some sessions, if it is quiet enough, so that another has room."""
        now, heard = monotonic_ns(), lambda incoming: incoming.heard
        quietest = min((self._incoming[session.number] for session in sessions), key=heard)
        if now - quietest.heard <= limits().call * NANOSECONDS:
            return False
        self._drop(quietest, now)
        return True

    def _drop(self, incoming: _Incoming, now: int) -> None:
        silent = (now - incoming.heard) / NANOSECONDS
        self._end(incoming, now, f"the sender has said nothing new for {silent:.0f} s")
        del self._incoming[incoming.session.number]
        self._admission.leave(incoming.session.number)

    def _end(self, incoming: _Incoming, now: int, failure: str = "") -> None:
        if incoming.ended_at is None:
            incoming.ended_at = now
            self._ended += 1
            self._admission.ending = 0 < self._count <= self._ended
            flow, seconds = incoming.receiver, (incoming.heard - incoming.began) / NANOSECONDS
            counts = flow.packets, flow.bytes, flow.duplicates, flow.reordered
            self._on_end(Received(incoming.session.address, seconds, *counts, failure))
