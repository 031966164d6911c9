"""One session at the receiver: what came, and the file that it makes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from distrlcc.net.file_sink import FileSink
from distrlcc.transport.door import Address, Session
from distrlcc.transport.messages import Close, Closed, Data, Ending, Verdict
from distrlcc.transport.receiver import Receiver
from distrlcc.transport.stream import StreamReceiver
from distrlcc.types import NANOSECONDS

_STORE_SECONDS = 60.0
"""A disk that takes longer than this is not waited for when the receiver is stopped, s."""


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
        self.heard = self.began = now
        self.closed: Closed | None = None
        """What is answered to the sender's CLOSE, once that is known."""
        self.closed_at = 0
        self.counted = False
        """Whether its end was told."""
        self._sink: FileSink | None = None
        self._stream: StreamReceiver | None = None
        self._keeper: threading.Thread | None = None
        self._failure, self._place = "", Path()
        hello = session.hello
        if hello.file_size is not None:
            assert folder is not None
            self._place = folder / hello.file_name
            self._sink = FileSink(folder, hello.file_name, session.number, hello.file_size)
            self._stream = StreamReceiver(hello.file_size, self._sink)

    @property
    def missing_bytes(self) -> int:
        """Bytes of the file that are still to come."""
        stream = self._stream
        return 0 if stream is None or self.closed else stream.size - stream.received_bytes

    @property
    def storing(self) -> bool:
        """Whether the whole file is being stored."""
        return self._keeper is not None

    def on_data(self, data: Data, size: int, *, now: int) -> None:
        """Take a packet; one that cannot be stored is not acknowledged, and ends the session."""
        if self.closed is not None:
            return
        self.heard = now
        if self._stream is not None and not self.storing:
            try:
                if not self._stream.on_chunk(data.offset, data.payload, data.fin):
                    return
            except OSError as error:
                self._failure = f"the file cannot be written ({error.strerror})"
                self._close(Verdict.FAILED, now)
                return
        self.receiver.on_data(data.number, size, data.lowest, now=now)

    def on_close(self, close: Close, *, now: int) -> None:
        """Take the sender's word that it is over; `closed` may come later, from `poll`."""
        if self.closed is not None:
            return
        self.heard = now
        if self.storing:
            return
        stream, sink = self._stream, self._sink
        if stream is None or sink is None:
            self._close(Verdict.INTACT, now)
        elif close.ending == Ending.ABORTED:
            self._failure = "the sender gave up"
            self._close(Verdict.INCOMPLETE, now)
        elif not stream.complete or close.size != stream.size:
            self._failure = "parts of the file are missing"
            self._close(Verdict.INCOMPLETE, now)
        elif close.digest != stream.digest():
            self._failure = "its checksum is not the sender's"
            self._close(Verdict.DIFFERENT, now)
        else:  # in a thread, as a disk may take seconds and other senders wait here
            self._keeper = threading.Thread(target=self._keep, args=(sink,), daemon=True)
            self._keeper.start()

    def _keep(self, sink: FileSink) -> None:
        try:
            sink.keep()
        except FileExistsError:
            self._failure = f"{sink.path} exists by now"
        except OSError as error:
            self._failure = f"{sink.path} cannot be written ({error.strerror})"

    def poll(self, *, now: int) -> None:
        """See whether the file is stored by now."""
        if self.closed is None and self._keeper is not None and not self._keeper.is_alive():
            self._sink = None
            self._close(Verdict.FAILED if self._failure else Verdict.INTACT, now)

    def _close(self, verdict: Verdict, now: int) -> None:
        if self._sink is not None:
            self._sink.drop()
            self._sink = None
        receiver = self.receiver
        digest = bytes(32) if self._stream is None else self._stream.digest()
        self.closed_at = now
        self.closed = Closed(self.session.number, verdict, receiver.packets, receiver.bytes, digest)

    def give_up(self, why: str, *, now: int) -> None:
        """End without the sender's word; what is being stored is waited for."""
        if self._keeper is not None:
            self._keeper.join(_STORE_SECONDS)
            self.poll(now=now)
            if self.closed is None:  # the thread still has the file: it is its own to drop
                self._sink, why = None, f"it was not stored within {_STORE_SECONDS:g} s"
        if self.closed is None:
            self._failure = why
            self._close(Verdict.INCOMPLETE, now)

    def received(self) -> Received:
        """Return how it went."""
        receiver = self.receiver
        kept = self._stream is not None and self.closed is not None and not self._failure
        return Received(
            self.session.address,
            (self.heard - self.began) / NANOSECONDS,
            receiver.packets,
            receiver.bytes,
            receiver.duplicates,
            receiver.reordered,
            self._place if kept else None,
            self.session.hello.file_name,
            self._failure,
        )
