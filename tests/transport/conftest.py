"""A whole session in virtual time: handshake, file, end, over a link that loses and reorders."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from distrlcc.control.base import Controller
from distrlcc.sim.link import RateLink
from distrlcc.sim.queues import DropTail, Packet
from distrlcc.transport import wire
from distrlcc.transport.door import Door, Session
from distrlcc.transport.handshake import Closing, Opening, State
from distrlcc.transport.keys import authentic
from distrlcc.transport.messages import (
    Acknowledgement,
    Buffer,
    Close,
    Closed,
    Data,
    Ending,
    Hello,
    Verdict,
)
from distrlcc.transport.receiver import Receiver
from distrlcc.transport.sender import Sender, SenderOptions
from distrlcc.transport.stream import StreamReceiver, StreamSender

MS = 1_000_000
UP, DOWN, READ = range(3)
ADDRESS = ("10.0.0.1", 4000)


@dataclass(frozen=True)
class Network:
    """What lies between; the way back has the same delay, loss and no queue."""

    rate_mbps: float = 12.0
    delay_ms: float = 10.0
    queue: int | None = 100
    """Packets."""
    loss: float = 0.0
    jitter_ms: float = 0.0
    """Each packet is late by up to this, at random: that reorders."""
    batch_ms: float = 0.0
    """The receiver reads this seldom, and answers a batch with one ACK."""
    outage_ms: tuple[float, float] = (0.0, 0.0)
    """Everything sent between these times is lost."""
    seed: int = 1


class Memory:
    """A sink in memory."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)

    def write(self, offset: int, data: Buffer) -> None:
        self.data[offset : offset + len(data)] = data

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])


class Transfer:
    """One file from one end to the other."""

    def __init__(
        self,
        controller: Callable[[int], Controller],
        data: bytes,
        network: Network,
        options: SenderOptions | None = None,
    ) -> None:
        self.data, self.network, self.options = data, network, options
        self.make_controller = controller
        self.random = random.Random(network.seed)
        self.link = RateLink([(0, round(network.rate_mbps * 1e6))], DropTail(network.queue))
        self.now = 0
        self.events: list[tuple[int, int, int, bytes]] = []
        self.count = itertools.count()
        self.queued: dict[int, bytes] = {}
        self.lost_on_the_way = self.dropped = self.found_lost = 0
        self.delivered: set[int] = set()
        self.timeouts: list[int] = []
        self.batch: list[bytes] = []
        nonce = self.random.randbytes(16)
        hello = Hello(self.random.getrandbits(64), nonce, 1452, len(data), "data.bin")
        self.opening: Opening = Opening(hello, now=0)
        self.sender: Sender | None = None
        self.stream: StreamSender | None = None
        self.closing: Closing | None = None
        self.door = Door(self.random.randbytes(32))
        self.session: Session | None = None
        self.receiver = Receiver(0)
        self.sink = Memory(len(data))
        self.assembly = StreamReceiver(len(data), self.sink)
        self.closed: bytes | None = None

    def run(self, limit_s: float = 300.0) -> None:
        """Go on until the end is confirmed, or fail at the limit."""
        while self.closing is None or self.closing.state is not State.CLOSED:
            self._send()
            own = self._next_time()
            event = self.events[0][0] if self.events else own
            self.now = max(self.now, min(own, event, self.link.next_time()))
            assert self.now < limit_s * 1e9, "the transfer does not end"
            if self.link.next_time() <= self.now:
                for packet in self.link.step():
                    self._travel(UP, self.queued.pop(packet.seq))
            while self.events and self.events[0][0] <= self.now:
                _, kind, _, datagram = heapq.heappop(self.events)
                self._event(kind, datagram)

    # The sender's end.

    def _next_time(self) -> int:
        if self.sender is None or self.stream is None:
            return self.opening.next_time()
        if self.closing is not None:
            return self.closing.next_time()
        if self.stream.has_data or self.sender.probe_due:
            return self.sender.next_time()
        return self.sender.timer_time()

    def _send(self) -> None:
        sender, stream = self.sender, self.stream
        if sender is None or stream is None:
            self._enqueue(self.opening.datagram_to_send(now=self.now))
            return
        if self.closing is not None:
            self._enqueue(self.closing.datagram_to_send(now=self.now))
            return
        if sender.timer_time() <= self.now:
            before = sender.timeouts_in_row
            self._lose(sender.on_timer(now=self.now))
            if sender.timeouts_in_row > before:
                self.timeouts.append(self.now)
        while stream.has_data or sender.probe_due:
            number = sender.packet_to_send(now=self.now)
            if number is None:
                break
            start, length, fin = stream.take(number)
            payload = self.data[start : start + length]
            data = Data(self.opening.hello.session, number, sender.lowest, start, payload, fin)
            self._enqueue(wire.encode_data(data))

    def _lose(self, numbers: list[int]) -> None:
        assert self.stream is not None
        self.stream.on_lost(numbers)
        self.found_lost += len(numbers)

    def _on_answer(self, datagram: bytes) -> None:
        if self.closing is not None:
            self.closing.on_datagram(datagram, now=self.now)
        elif self.sender is None:
            self.opening.on_datagram(datagram, now=self.now)
            if self.opening.state is State.OPEN:
                chunk = self.opening.welcome.max_datagram - wire.DATA_BYTES
                self.stream = StreamSender(len(self.data), chunk)
                controller = self.make_controller(self.now)
                self.sender = Sender(controller, self.options, now=self.now)
                self._close_if_complete()
        else:
            ack = wire.decode(datagram)
            if isinstance(ack, Acknowledgement) and authentic(datagram, self.opening.key):
                acked, lost = self.sender.on_ack(ack.ranges, ack.delay_us * 1000, now=self.now)
                self.stream.on_acked(acked)
                self._lose(lost)
                self._close_if_complete()

    def _close_if_complete(self) -> None:
        if self.stream.complete:
            digest = hashlib.sha256(self.data).digest()
            close = Close(self.opening.hello.session, Ending.COMPLETE, len(self.data), digest)
            self.closing = Closing(close, self.opening.key, now=self.now)

    # The way.

    def _lost(self) -> bool:
        begin, end = (edge * MS for edge in self.network.outage_ms)
        lost = begin <= self.now < end or self.random.random() < self.network.loss
        self.lost_on_the_way += lost
        return lost

    def _enqueue(self, datagram: bytes | None) -> None:
        if datagram is None or self._lost():
            return
        seq = next(self.count)
        self.queued[seq] = datagram
        if self.link.arrive(Packet(len(datagram) + 28, self.now, seq=seq)):
            self.dropped += 1
            del self.queued[seq]

    def _travel(self, kind: int, datagram: bytes) -> None:
        delay = self.network.delay_ms + self.random.random() * self.network.jitter_ms
        self._push(self.now + round(delay * MS), kind, datagram)

    def _push(self, time: int, kind: int, datagram: bytes = b"") -> None:
        heapq.heappush(self.events, (time, kind, next(self.count), datagram))

    def _event(self, kind: int, datagram: bytes) -> None:
        if kind == DOWN:
            self._on_answer(datagram)
        elif kind == UP:
            if not self.batch:
                batch = max(round(self.network.batch_ms * MS), 1)
                self._push(-(-self.now // batch) * batch, READ)
            self.batch.append(datagram)
        else:
            self._read()

    # The receiver's end.

    def _read(self) -> None:
        for datagram in self.batch:
            message = wire.decode(datagram)
            if isinstance(message, Data):
                if self.assembly.on_chunk(message.offset, message.payload, message.fin):
                    self.receiver.on_data(
                        message.number, len(datagram), message.lowest, now=self.now
                    )
                    self.delivered.add(message.number)
            elif isinstance(message, Close):
                self._answer(self._on_close(message, datagram))
            else:
                reply, session = self.door.on_datagram(datagram, ADDRESS, now=self.now)
                if session is not None:
                    self.session, self.receiver = session, Receiver(session.number)
                self._answer(reply)
        self.batch.clear()
        ack = self.receiver.ack_to_send(now=self.now)
        if ack is not None:
            self._answer(wire.encode_ack(ack, self.session.key))

    def _on_close(self, close: Close, datagram: bytes) -> bytes:
        assert authentic(datagram, self.session.key)
        assert close.size == len(self.data)
        digest = self.assembly.digest()
        verdict = Verdict.INTACT if digest == close.digest else Verdict.DIFFERENT
        if not self.assembly.complete:
            verdict = Verdict.INCOMPLETE
        receiver = self.receiver
        closed = Closed(close.session, verdict, receiver.packets, receiver.bytes, digest)
        return wire.encode_closed(closed, self.session.key)

    def _answer(self, datagram: bytes | None) -> None:
        if datagram is not None and not self._lost():
            self._travel(DOWN, datagram)


@pytest.fixture(scope="session")
def transfer() -> type[Transfer]:
    return Transfer


@pytest.fixture(scope="session")
def network() -> type[Network]:
    return Network
