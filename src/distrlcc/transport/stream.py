"""A file over packet numbers: what goes into which packet, and how it is put together again.

Packet numbers are never reused, so what was lost leaves again under a new number. Neither end keeps
bytes: the sender's owner reads a chunk's bytes when it leaves, the receiver writes them where they
belong as they come. The sender cuts the file into chunks of one size; the receiver takes any.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from distrlcc.transport.messages import Buffer
from distrlcc.transport.ranges import Ranges

MAX_SPANS = 4096
"""Spans of a file that a receiver keeps; a chunk that would make one more is not taken."""
_BLOCK = 1 << 16


class Chunk(NamedTuple):
    """Bytes of the file in one packet."""

    offset: int
    length: int
    fin: bool
    """Whether it ends the file."""


class StreamSender:
    """Hands out chunks: first what was lost, then what is new, then copies of what is in flight.

    ::

        while stream.has_data or sender.probe_due:
            number = sender.packet_to_send(now=now)
            if number is None: break
            chunk = stream.take(number)
        acked, lost = sender.on_ack(...)
        stream.on_acked(acked)
        stream.on_lost(lost)              # of `on_timer` as well
    """

    def __init__(self, size: int, chunk_bytes: int) -> None:
        """Start.

        Args:
            size: Bytes of the file.
            chunk_bytes: Bytes of it in one packet.
        """
        self.size = size
        self._chunk_bytes = chunk_bytes
        self._chunks = -(-size // chunk_bytes)
        self._next = 0
        self._lost: deque[int] = deque()  # the first one is never an acknowledged one
        self._sent: dict[int, int] = {}  # chunks by packet number
        self._acked = Ranges()  # of chunks
        self._acked_count = 0

    @property
    def has_data(self) -> bool:
        """Whether something new or lost waits to be sent."""
        return bool(self._lost) or self._next < self._chunks

    @property
    def complete(self) -> bool:
        """Whether the whole file was acknowledged."""
        return self._acked_count == self._chunks

    @property
    def acked_bytes(self) -> int:
        """Bytes of the file that were acknowledged, the last chunk taken for a full one."""
        return min(self._acked_count * self._chunk_bytes, self.size)

    def take(self, number: int) -> Chunk:
        """Return the chunk to send under a packet number.

        Without new or lost data it is a copy of the oldest chunk in flight, for a timer's probe;
        after the end it is empty.
        """
        if self._lost:
            chunk = self._lost.popleft()
            self._skip_acked()
        elif self._next < self._chunks:
            chunk = self._next
            self._next += 1
        else:
            chunk = self._acked.first_missing()
        self._sent[number] = chunk
        offset = min(chunk * self._chunk_bytes, self.size)
        stop = min(offset + self._chunk_bytes, self.size)
        return Chunk(offset, stop - offset, stop == self.size)

    def on_acked(self, numbers: Iterable[int]) -> None:
        """Take note of acknowledged packets."""
        for number in numbers:
            chunk = self._sent.pop(number)
            if chunk < self._chunks:
                self._acked_count += self._acked.add(chunk, chunk + 1)
        self._skip_acked()

    def on_lost(self, numbers: Iterable[int]) -> None:
        """Plan to send again what lost packets held, unless it arrived in another one."""
        for number in numbers:
            chunk = self._sent.pop(number)
            if chunk < self._chunks:
                self._lost.append(chunk)
        self._skip_acked()

    def _skip_acked(self) -> None:
        while self._lost and self._lost[0] in self._acked:
            self._lost.popleft()


class Sink(Protocol):
    """Where a received file goes."""

    def write(self, offset: int, data: Buffer) -> None:
        """Store bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes that were stored."""


class StreamReceiver:
    """Puts a file together in any order and knows when it is whole."""

    def __init__(self, size: int, sink: Sink) -> None:
        """Start.

        Args:
            size: Bytes of the file, as the HELLO said.
            sink: Stores the bytes. What comes out of order is read back once for the digest.
        """
        self.size = size
        self.received_bytes = 0
        """Bytes of the file that are stored."""
        self.refused = 0
        """Chunks that were not taken."""
        self._sink = sink
        self._spans = Ranges()
        self._digest = hashlib.sha256()
        self._digested = 0

    @property
    def complete(self) -> bool:
        """Whether every byte is stored."""
        return self.received_bytes == self.size

    def on_chunk(self, offset: int, data: Buffer, fin: bool) -> bool:
        """Store a chunk; return False if it cannot be taken: then its packet must not be acked.

        It is refused if it contradicts the file's size, or if it would make one span too many.
        """
        stop = offset + len(data)
        if stop > self.size or (fin and stop != self.size):
            self.refused += 1
            return False
        if not data:
            return True
        if offset > self._digested and len(self._spans) >= MAX_SPANS:
            self.refused += 1
            return False
        gaps = self._spans.missing(offset, stop)
        if offset == self._digested and gaps == [(offset, stop)]:
            self._digest.update(data)
            self._digested = stop
        for start, end in gaps:
            self._sink.write(start, data[start - offset : end - offset])
            self.received_bytes += self._spans.add(start, end)
        self._catch_up()
        return True

    def digest(self) -> bytes:
        """Return the SHA-256 of the bytes from the start to the first missing one."""
        return self._digest.digest()

    def _catch_up(self) -> None:
        """Digest what was stored ahead of its turn."""
        stop = self._spans.first_missing()
        while self._digested < stop:
            length = min(stop - self._digested, _BLOCK)
            self._digest.update(self._sink.read(self._digested, length))
            self._digested += length
