"""Receives flows over a real socket: lets senders in, acknowledges, and puts files together."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import OutputError, WireError
from distrlcc.net.file_sink import sweep
from distrlcc.net.incoming import Incoming, Received
from distrlcc.net.udp_socket import Address, UdpSocket, monotonic_ns
from distrlcc.transport import wire
from distrlcc.transport.door import Door, DoorCounts, DoorOptions
from distrlcc.transport.keys import authentic
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
    sessions: int = 64
    """Senders at one time."""
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
            OutputError: The folder is none, or cannot be written.
        """
        self._socket, self._options = socket, options
        self._on_begin, self._on_end = on_begin, on_end
        self.swept = 0
        """Files that were removed, which killed receivers had left."""
        if options.folder is not None:
            if not options.folder.is_dir() or not os.access(options.folder, os.W_OK):
                raise OutputError(f"{options.folder}: expected a folder that can be written")
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

    def run(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Serve until ``stopping`` says so, or the sessions are over; return how many ended."""
        while not stopping():
            now = monotonic_ns()
            self._socket.wait(now + _TICK_NS)
            self._take(self._socket.receive(), monotonic_ns())
            self._give_up_silent(monotonic_ns())
            if self._options.count and self._ended >= self._options.count and not self._incoming:
                break
        for incoming in self._incoming.values():
            if incoming.closed is None:
                self._end(incoming, "this receiver was stopped")
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
                touched[incoming.session.number] = incoming
            elif isinstance(message, Close):
                self._close(incoming, message, datagram, now)
            else:
                self._welcome(datagram, address, now)
        for incoming in touched.values():
            ack = incoming.receiver.ack_to_send(now=now)
            if ack is not None and incoming.closed is None:
                session = incoming.session
                self._socket.send([wire.encode_ack(ack, session.key)], session.address)

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
            except OSError as error:  # the disk is full, say; the sender times out
                self._door.leave(session.number, now=now)
                self._on_end(
                    Received(
                        address, 0.0, 0, 0, 0, 0,
                        name=session.hello.file_name, failure=f"cannot be written ({error})",
                    )
                )  # fmt: skip
                return
            self._incoming[session.number] = incoming
            self._on_begin(incoming)
        if reply is not None:
            self._socket.send([reply], address)

    def _admit(self, hello: Hello) -> Refuse | None:
        """Say why a file is not wanted."""
        if hello.file_size is None:
            return None
        folder, name = self._options.folder, hello.file_name
        if folder is None:
            why = "no files are taken here; start it with --folder DIR"
        elif (folder / name).exists() or (folder / name).is_symlink():
            why = f"{name} is there already; transfers are not resumed, and nothing is replaced"
        elif any(each.session.hello.file_name == name for each in self._incoming.values()):
            why = f"{name} is being received from another sender"
        elif shutil.disk_usage(folder).free < hello.file_size:
            why = f"no room for {hello.file_size} bytes"
        else:
            return None
        return Refuse(hello.session, Reason.FILE_REFUSED, why)

    def _close(self, incoming: Incoming, close: Close, datagram: bytes, now: int) -> None:
        session = incoming.session
        if not authentic(datagram, session.key):
            self._forged += 1
            return
        first = incoming.closed is None
        closed = incoming.on_close(close, now=now)
        self._socket.send([wire.encode_closed(closed, session.key)], session.address)
        if first:
            self._ended += 1
            self._on_end(incoming.received())

    def _give_up_silent(self, now: int) -> None:
        """Forget who has ended or says nothing."""
        for number, incoming in list(self._incoming.items()):
            silent = now - incoming.heard
            if incoming.closed is not None and silent > _LINGER_NS:
                pass
            elif incoming.closed is None and silent > self._options.silence_s * NANOSECONDS:
                self._end(incoming, f"the sender has said nothing for {silent / NANOSECONDS:.0f} s")
            else:
                continue
            del self._incoming[number]
            self._door.leave(number, now=now)

    def _end(self, incoming: Incoming, why: str) -> None:
        incoming.give_up(why)
        self._ended += 1
        self._on_end(incoming.received())
