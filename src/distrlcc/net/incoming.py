"""One session at the receiver: what came, and the file that it makes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distrlcc.net.file_sink import FileSink
from distrlcc.transport.door import Address, Session
from distrlcc.transport.messages import Close, Closed, Data, Ending, Verdict
from distrlcc.transport.receiver import Receiver
from distrlcc.transport.stream import StreamReceiver
from distrlcc.types import NANOSECONDS


@dataclass(frozen=True)
class Received:
    """How a session went."""

    address: Address
    seconds: float
    packets: int
    bytes: int
    """UDP payload, duplicates left out."""
    duplicates: int
    reordered: int
    file: Path | None = None
    """Where the file is, if it arrived whole."""
    name: str = ""
    """The file's, empty for a measurement."""
    failure: str = ""
    """Why it did not end well, one line."""

    @property
    def mbps(self) -> float:
        """Payload throughput, Mbit/s."""
        return self.bytes * 8e-6 / self.seconds if self.seconds else 0.0


class Incoming:
    """A sender that was let in."""

    def __init__(self, session: Session, folder: Path | None, *, now: int) -> None:
        """Begin.

        Raises:
            OSError: The file cannot be created.
        """
        self.session, self.receiver = session, Receiver(session.number)
        self.heard = self._begin = now
        self.closed: Closed | None = None
        """What was answered to the sender's CLOSE."""
        self._sink: FileSink | None = None
        self._stream: StreamReceiver | None = None
        self._failure, self._place = "", Path()
        hello = session.hello
        if hello.file_size is not None:
            assert folder is not None
            self._place = folder / hello.file_name
            self._sink = FileSink(folder, hello.file_name, session.number)
            self._stream = StreamReceiver(hello.file_size, self._sink)

    def on_data(self, data: Data, size: int, *, now: int) -> None:
        """Take a packet; one that cannot be stored is not acknowledged, and comes again."""
        self.heard = now
        if self._stream is not None and self.closed is None and not self._failure:
            try:
                if not self._stream.on_chunk(data.offset, data.payload, data.fin):
                    return
            except OSError as error:
                self._failure = f"the file cannot be written ({error.strerror})"
        self.receiver.on_data(data.number, size, data.lowest, now=now)

    def on_close(self, close: Close, *, now: int) -> Closed:
        """End, and say what there is; the same to every copy."""
        self.heard = now
        if self.closed is None:
            verdict = self._end(close)
            receiver = self.receiver
            digest = bytes(32) if self._stream is None else self._stream.digest()
            self.closed = Closed(
                self.session.number, verdict, receiver.packets, receiver.bytes, digest
            )
        return self.closed

    def _end(self, close: Close) -> Verdict:
        """Keep the file if it is whole."""
        stream, sink = self._stream, self._sink
        if stream is None or sink is None:
            return Verdict.INTACT
        verdict = Verdict.INTACT
        if close.ending == Ending.ABORTED:
            verdict, self._failure = Verdict.INCOMPLETE, "the sender gave up"
        elif self._failure:
            verdict = Verdict.FAILED
        elif not stream.complete or close.size != stream.size:
            verdict, self._failure = Verdict.INCOMPLETE, "parts of the file are missing"
        elif close.digest != stream.digest():
            verdict, self._failure = Verdict.DIFFERENT, "its checksum is not the sender's"
        else:
            try:
                sink.keep()
            except FileExistsError:
                verdict, self._failure = Verdict.FAILED, f"{sink.path} exists by now"
            except OSError as error:
                self._failure = f"{sink.path} cannot be written ({error.strerror})"
                verdict = Verdict.FAILED
        if verdict != Verdict.INTACT:
            with suppress(OSError):
                sink.drop()
        self._sink = None
        return verdict

    def give_up(self, why: str) -> None:
        """End without the sender's word."""
        if self.closed is None:
            self._failure = why
            if self._sink is not None:
                self._sink.drop()
                self._sink = None

    def received(self) -> Received:
        """Return how it went."""
        receiver, name = self.receiver, self.session.hello.file_name
        kept = self._stream is not None and self.closed is not None and not self._failure
        return Received(
            self.session.address,
            (self.heard - self._begin) / NANOSECONDS,
            receiver.packets,
            receiver.bytes,
            receiver.duplicates,
            receiver.reordered,
            self._place if kept else None,
            name,
            self._failure,
        )
