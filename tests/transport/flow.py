"""A whole flow in virtual time: handshake, packets, end, over a link that loses and reorders."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distrlcc.control.base import Controller
from distrlcc.sim.link import RateLink
from distrlcc.sim.queues import DropTail, Packet
from distrlcc.transport import wire
from distrlcc.transport.handshake import Admission, Opening, Repeat
from distrlcc.transport.receiver import Receiver
from distrlcc.transport.sender import Sender, SenderOptions
from distrlcc.transport.wire import Acknowledgement, Data, Hello, authentic

MS = 1_000_000
SIZE = 1452
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
    late: tuple[float, float] = (0.0, 0.0)
    """Such a share of the packets, no ACKs, is so late, ms."""
    batch_ms: float = 0.0
    """The receiver reads this seldom, and answers a batch with one ACK."""
    outage_ms: tuple[float, float] = (0.0, 0.0)
    """Everything sent between these times is lost."""
    silence_ms: float = 0.0
    """For so long the link serves nothing, from 500 ms on."""
    seed: int = 1


class Transfer:
    """A flow that ends when so many packets were acknowledged."""

    def __init__(
        self,
        controller: Callable[[int], Controller],
        packets: int,
        network: Network,
        options: SenderOptions | None = None,
    ) -> None:
        self.packets, self.network, self.options = packets, network, options
        self.make_controller = controller
        self.random = random.Random(network.seed)
        rate, silence = round(network.rate_mbps * 1e6), round(network.silence_ms * MS)
        rates = [(0, rate), (500 * MS, 0), (500 * MS + silence, rate)] if silence else [(0, rate)]
        self.link = RateLink(rates, DropTail(network.queue))
        self.now = 0
        self.events: list[tuple[int, int, Callable[..., None], tuple[bytes, ...]]] = []
        self.count = itertools.count()
        self.queued: dict[int, bytes] = {}
        self.lost_on_the_way = self.acked = self.found_lost = self.spurious = 0
        self.delivered: set[int] = set()
        self.timeouts: list[int] = []
        self.batch: list[bytes] = []
        nonce = self.random.randbytes(16)
        self.opening = Opening(Hello(self.random.getrandbits(64), nonce, SIZE), now=0)
        self.sender: Any = None  # a `Sender`, once the handshake is done
        self.end: Repeat | None = None
        self.ended = False
        self.admission = Admission()
        self.key = b""
        self.receiver = Receiver(0)

    def run(self, limit_s: float = 300.0) -> None:
        """Go on until the end is confirmed, or fail at the limit."""
        while not self.ended:
            self._send()
            own = self._next_time()
            event = self.events[0][0] if self.events else own
            self.now = max(self.now, min(own, event, self.link.next_time()))
            assert self.now < limit_s * 1e9, "the flow does not end"
            if self.link.next_time() <= self.now:
                for packet in self.link.step():
                    self._travel(self._arrive, self.queued.pop(packet.seq))
            while self.events and self.events[0][0] <= self.now:
                _, _, call, datagram = heapq.heappop(self.events)
                call(*datagram)

    # The sender's end.

    def _next_time(self) -> int:
        if self.sender is None:
            return self.opening.next_time()
        return self.sender.next_time() if self.end is None else self.end.next_time()

    def _send(self) -> None:
        sender, session = self.sender, self.opening.hello.session
        if sender is None:
            self._enqueue(self.opening.datagram_to_send(now=self.now))
            return
        if self.end is not None:
            if self.end.take(now=self.now):
                end = sender.next_number
                fin = wire.data_header(session, end, end, fin=True)
                self._enqueue(fin.ljust(wire.MIN_DATAGRAM, b"\0"))
            return
        if sender.timer_time() <= self.now:
            before = sender.rtt.backoff
            self.found_lost += len(sender.on_timer(now=self.now))
            if sender.rtt.backoff > before:
                self.timeouts.append(self.now)
        while (number := sender.packet_to_send(now=self.now)) is not None:
            header = wire.data_header(session, number, sender.lowest(now=self.now))
            self._enqueue(header.ljust(SIZE, b"\0"))

    def _on_answer(self, datagram: bytes) -> None:
        if self.sender is None:
            self.opening.on_datagram(datagram, now=self.now)
            if self.opening.answer is not None:
                controller = self.make_controller(self.now)
                first = self.opening.rtt
                self.sender = Sender(controller, self.options, now=self.now, first_rtt=first)
            return
        ack = wire.decode(datagram)
        if not isinstance(ack, Acknowledgement) or not authentic(datagram, self.opening.key):
            return
        if self.end is not None:
            self.ended = ack.ranges[0][1] > self.sender.next_number
            return
        acked, lost, spurious = self.sender.on_ack(ack.ranges, now=self.now)
        self.acked += len(acked)
        self.found_lost += len(lost) - len(spurious)
        self.spurious += len(spurious)
        if self.acked >= self.packets:
            self.end = Repeat(10**10, now=self.now)

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
            del self.queued[seq]

    def _travel(self, call: Callable[[bytes], None], datagram: bytes) -> None:
        delay = self.network.delay_ms + self.random.random() * self.network.jitter_ms
        if call == self._arrive and self.random.random() < self.network.late[0]:
            delay += self.network.late[1]
        self._push(self.now + round(delay * MS), call, datagram)

    def _push(self, time: int, call: Callable[..., None], *datagram: bytes) -> None:
        heapq.heappush(self.events, (time, next(self.count), call, datagram))

    # The receiver's end.

    def _arrive(self, datagram: bytes) -> None:
        if not self.batch:
            batch = max(round(self.network.batch_ms * MS), 1)
            self._push(-(-self.now // batch) * batch, self._read)
        self.batch.append(datagram)

    def _read(self) -> None:
        for datagram in self.batch:
            data = wire.decode(datagram)
            if isinstance(data, Data):
                self.receiver.on_data(data.number, len(datagram), data.lowest)
                self.delivered.add(data.number)
            else:
                reply, session = self.admission.on_datagram(datagram, ADDRESS)
                if session is not None:
                    self.key, self.receiver = session.key, Receiver(session.number)
                self._answer(reply)
        self.batch.clear()
        ack = self.receiver.ack_to_send()
        if ack is not None:
            self._answer(wire.encode_ack(ack, self.key))

    def _answer(self, datagram: bytes | None) -> None:
        if datagram is not None and not self._lost():
            self._travel(self._on_answer, datagram)
