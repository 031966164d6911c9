"""Receives flows over a real socket: lets senders in, acknowledges, and puts files together."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import WireError
from distrlcc.net.file_sink import check_folder, sweep
from distrlcc.net.incoming import Incoming, Received
from distrlcc.net.udp_socket import Address, UdpSocket, monotonic_ns
from distrlcc.transport import wire
from distrlcc.transport.door import Door, DoorCounts, DoorOptions, Session
from distrlcc.transport.keys import authentic, session_key
from distrlcc.transport.messages import Buffer, Close, Data, Hello, Reason, Refuse
from distrlcc.types import NANOSECONDS

_LINGER_NS = 3 * NANOSECONDS
"""A sender whose CLOSED was lost asks again for this long."""
_TICK_NS = 200_000_000


@dataclass(frozen=True)
class ReceiveOptions:
    """What is taken."""

    folder: Path | None = None
    """Where files go; None takes none."""
    max_file_bytes: int = 0
    """Largest file; 0: as large as there is room."""
    sessions: int = 64
    """Senders at one time."""
    host_sessions: int = 16
    """Of these, from one host."""
    silence_s: float = 30.0
    """A sender that says nothing for this long is given up, s."""
    count: int = 0
    """End after so many sessions; 0: never."""


class ReceiveServer:
    """Serves a socket until it is told to stop."""

    def __init__(
        self,
        socket: UdpSocket,
        options: ReceiveOptions,
        *,
        on_begin: Callable[[Incoming], None] = lambda _: None,
        on_end: Callable[[Received], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            socket: Bound.
            options: What is taken.
            on_begin: Told of each sender that is let in.
            on_end: Told how each session went.

        Raises:
            OutputError: Files cannot be put into the folder.
        """
        self._socket, self._options = socket, options
        self._on_begin, self._on_end = on_begin, on_end
        self.swept = 0
        """Files that were removed, which killed receivers had left."""
        if options.folder is not None:
            check_folder(options.folder)
            self.swept = sweep(options.folder)
        self._door = Door(
            secrets.token_bytes(32),
            DoorOptions(
                max_sessions=options.sessions, idle_timeout_ms=round(options.silence_s * 1e3)
            ),
            self._admit,
        )
        self._incoming: dict[int, Incoming] = {}
        self._forged = self._stray = self._ended = 0

    @property
    def counts(self) -> DoorCounts:
        """What came to the door; forged and stray ones of open sessions are counted too."""
        counts = self._door.counts
        counts.forged, self._forged = counts.forged + self._forged, 0
        counts.stray, self._stray = counts.stray + self._stray, 0
        return counts

    @property
    def _full(self) -> bool:
        """Whether as many sessions have ended as were asked for."""
        return bool(self._options.count) and self._ended >= self._options.count

    def run(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Serve until ``stopping`` says so, or the sessions are over; return how many ended."""
        while not stopping() and not (self._full and not self._incoming):
            self._socket.wait(monotonic_ns() + _TICK_NS)
            self._take(self._socket.receive(), monotonic_ns())
            self._look_after(monotonic_ns())
        now = monotonic_ns()
        for incoming in self._incoming.values():
            if incoming.closed is None:
                incoming.give_up("this receiver was stopped", now=now)
                self._end(incoming)
        return self._ended

    def _take(self, datagrams: list[tuple[bytes, Address]], now: int) -> None:
        """Take what came at once, and acknowledge it with one ACK for each session."""
        touched: dict[int, Incoming] = {}
        for datagram, address in datagrams:
            incoming = self._find(datagram, address)
            if incoming is None:
                self._welcome(datagram, address, now)
                continue
            try:
                message = wire.decode(memoryview(datagram))
            except WireError:
                self._door.counts.malformed += 1
                continue
            if isinstance(message, Data):
                incoming.on_data(message, len(datagram), now=now)
            elif not isinstance(message, Close):
                self._welcome(datagram, address, now)
                continue
            elif authentic(datagram, incoming.session.key):
                incoming.on_close(message, now=now)
            else:
                self._forged += 1
                continue
            touched[incoming.session.number] = incoming
        for incoming in touched.values():
            self._answer(incoming, now)

    def _answer(self, incoming: Incoming, now: int) -> None:
        """Acknowledge what came, or say that it is over."""
        session = incoming.session
        if incoming.closed is not None:
            self._say_closed(incoming)
            return
        ack = incoming.receiver.ack_to_send(now=now)
        if ack is not None:
            self._socket.send([wire.encode_ack(ack, session.key)], session.address)

    def _say_closed(self, incoming: Incoming) -> None:
        """Say that it is over; the first time count it."""
        assert incoming.closed is not None
        session = incoming.session
        self._socket.send([wire.encode_closed(incoming.closed, session.key)], session.address)
        self._end(incoming)

    def _find(self, datagram: bytes, address: Address) -> Incoming | None:
        """Return the session that a datagram names, if it comes from its sender."""
        if len(datagram) < wire.HEADER.size:
            return None
        *_, number = wire.HEADER.unpack_from(datagram)
        incoming = self._incoming.get(number)
        if incoming is not None and incoming.session.address != address:
            self._stray += 1
            return None
        return incoming

    def _welcome(self, datagram: Buffer, address: Address, now: int) -> None:
        reply, session = self._door.on_datagram(datagram, address, now=now)
        if session is not None:
            try:
                incoming = Incoming(session, self._options.folder, now=now)
            except OSError as error:
                reply = self._turn_away(session, error, now)
            else:
                self._incoming[session.number] = incoming
                self._on_begin(incoming)
        if reply is not None:
            self._socket.send([reply], address)

    def _turn_away(self, session: Session, error: OSError, now: int) -> bytes:
        """Return the answer to a sender whose file cannot be created."""
        self._door.leave(session.number, now=now)
        hello, why = session.hello, f"its file cannot be created ({error.strerror})"
        self._ended += 1
        self._on_end(Received(session.address, 0.0, 0, 0, 0, 0, name=hello.file_name, failure=why))
        refuse = Refuse(session.number, Reason.FILE_REFUSED, why)
        return wire.encode_refuse(refuse, session_key(hello.session, hello.nonce))

    def _admit(self, hello: Hello, address: Address) -> Refuse | None:
        """Say why a sender is not let in."""
        here = [each for each in self._incoming.values() if each.session.address[0] == address[0]]
        if self._full:
            return Refuse(hello.session, Reason.BUSY, "it is about to end")
        if len(here) >= self._options.host_sessions:
            return Refuse(hello.session, Reason.BUSY, f"{len(here)} sessions of yours are open")
        if hello.file_size is None:
            return None
        try:
            why = self._refusal(hello.file_name, hello.file_size)
        except OSError as error:
            why = f"the folder cannot be used ({error.strerror})"
        return Refuse(hello.session, Reason.FILE_REFUSED, why) if why else None

    def _refusal(self, name: str, size: int) -> str:
        """Return why a file is not wanted, or nothing."""
        folder, most = self._options.folder, self._options.max_file_bytes
        open_ones = [each for each in self._incoming.values() if each.closed is None]
        if folder is None:
            return "no files are taken here; start it with --folder DIR"
        if name.startswith("."):
            return "names that begin with a dot are not taken"
        if most and size > most:
            return f"files of up to {most} bytes are taken"
        if (folder / name).exists() or (folder / name).is_symlink():
            return f"{name} is there already; transfers are not resumed, and nothing is replaced"
        if any(each.session.hello.file_name == name for each in open_ones):
            return f"{name} is being received from another sender"
        promised = sum(each.missing_bytes for each in open_ones)
        if shutil.disk_usage(folder).free - promised < size:
            return f"no room for {size} bytes"
        return ""

    def _look_after(self, now: int) -> None:
        """See which files are stored, and forget who has ended or says nothing."""
        for number, incoming in list(self._incoming.items()):
            if incoming.closed is None:
                incoming.poll(now=now)
                if incoming.closed is not None:
                    self._say_closed(incoming)
            silent = (now - incoming.heard) / NANOSECONDS
            if incoming.closed is not None:
                if now - incoming.closed_at < _LINGER_NS:
                    continue
            elif silent > self._options.silence_s and not incoming.storing:
                incoming.give_up(f"the sender has said nothing for {silent:.0f} s", now=now)
                self._end(incoming)
            else:
                continue
            del self._incoming[number]
            self._door.leave(number, now=now)

    def _end(self, incoming: Incoming) -> None:
        """Count a session that is over, once."""
        if not incoming.counted:
            incoming.counted = True
            self._ended += 1
            self._on_end(incoming.received())
