"""One direction of an emulated link: queue and bottleneck, then loss, delay and reordering.

Sans-IO: times come in as ns since the emulator's start. The bottleneck is the very `TraceLink`
that `distrlcc check link` replays mahimahi's logs through. Like mahimahi it knows whole
milliseconds: an arrival is stamped with the one that it falls into.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from distrlcc.net.emulator.link_config import DirectionConfig, LinkChange
from distrlcc.net.emulator.link_log import Datagram, LinkLog, is_capable, with_mark
from distrlcc.sim.link import NEVER, TraceLink
from distrlcc.sim.queues import Packet
from distrlcc.sim.reference import wait

MILLISECOND = 1_000_000
_TUN_HEADER = 4
FULL_BYTES = 1000  # a packet of this size carries data; what shakes hands is smaller
_IDLE_MS = 50  # how long an idle bottleneck's opportunities go unnoticed: catching up costs time


class Direction:
    """Receives packets at one end and returns them when they arrive at the other."""

    def __init__(
        self, config: DirectionConfig, generator: random.Random, *, logs: Sequence[LinkLog] = ()
    ) -> None:
        """Start as a path of an opportunity in each millisecond and no queue, until `begin`."""
        self._config, self._generator, self._logs = config, generator, tuple(logs)
        self._delay = round(config.delay_ms * MILLISECOND)
        self._jitter = round(config.jitter_ms * MILLISECOND)
        self._seed = generator.getrandbits(48) if config.jitter_ms else 0
        self._packets = count()
        self._tick = max(round(config.tick_ms * MILLISECOND), 1)
        self._loss = 0.0
        self._base = 0
        self._changes: deque[LinkChange] = deque()
        self._late = round(config.late_ms * MILLISECOND)
        self._flying: deque[tuple[int, bytes]] = deque()
        self._overtaken: deque[tuple[int, bytes]] = deque()  # those that are late
        self._last_release = 0
        self._link: TraceLink | None = None
        self.on_full: Callable[[int], None] | None = None  # with the time, ms, before a full packet

    def begin(self, base: int) -> None:
        """Begin the link's time, ms: the trace's time zero, if it starts at that."""
        config = self._config
        self._loss, self._base, self._changes = config.loss, base, deque(config.changes)
        if config.times is not None:
            draw = self._generator.random
            queue = config.queue.build(unit=1, draw=lambda _: draw(), on_drop=self._note_drops)
            self._link = TraceLink(config.times or (NEVER,), queue, base=base - config.phase_ms)
            while config.phase_ms and self._link.next_time() <= base:
                self._link.step()

    def arrive(self, data: bytes, *, now: int) -> None:
        """Queue an IP packet at its arrival; call `advance` before."""
        milliseconds = now // MILLISECOND
        if self.on_full is not None and len(data) >= FULL_BYTES:
            self.on_full(milliseconds)
        link = self._link
        if link is None:
            # A bottleneck that is still to begin delays as it will, so that a handshake's round
            # trips are not the shortest of all: HyStart would take those after it for a queue.
            waits = self._config.times is not None
            self._depart(data, (milliseconds + 1) * MILLISECOND if waits else now)
            return
        self._use_until(milliseconds)  # where this packet has just let the link begin
        size, capable = len(data) + _TUN_HEADER, is_capable(data)
        packet = Datagram(size, milliseconds, capable=capable, data=data)
        for log in self._logs:
            log.arrival(milliseconds, packet)
        self._note_drops(milliseconds, *link.arrive(packet))

    def advance(self, *, now: int) -> None:
        """Do all that the bottleneck does up to a time; changes come before departures."""
        milliseconds = now // MILLISECOND
        while self._changes and self._base + self._changes[0].at_ms <= milliseconds:
            change = self._changes.popleft()
            self._use_until(self._base + change.at_ms - 1)
            if change.delay_ms is not None:
                self._delay = round(change.delay_ms * MILLISECOND)
            if change.loss is not None:
                self._loss = change.loss
            if change.times is not None and self._link is not None:
                # What the old rate has carried until then leaves in this very millisecond.
                self._use_until(self._base + change.at_ms)
                since = self._base + change.at_ms - change.phase_ms
                self._link.follow(change.times or (NEVER,), base=since)
        self._use_until(milliseconds)

    def arrivals(self, *, now: int) -> Iterator[bytes]:
        """Yield the packets that have reached the other end."""
        while (first := self._first()) and first[0][0] <= now:
            yield first.popleft()[1]

    def _first(self) -> deque[tuple[int, bytes]]:
        """Return the packets of which one arrives first; empty: none flies."""
        flying, overtaken = self._flying, self._overtaken
        return overtaken if overtaken and (not flying or overtaken[0][0] < flying[0][0]) else flying

    def next_time(self, *, now: int) -> int:
        """Return when `advance` and `arrivals` have something to do, ns."""
        first = self._first()
        time = first[0][0] if first else NEVER
        if self._changes:
            time = min(time, (self._base + self._changes[0].at_ms) * MILLISECOND)
        if self._link is not None:
            due = self._link.next_time()
            if not self._link.queued:
                due = max(due, now // MILLISECOND + _IDLE_MS)
            time = min(time, due * MILLISECOND)
        return time

    @property
    def empty(self) -> bool:
        """Whether no packet is on the way."""
        return not self._first() and (self._link is None or not self._link.queued)

    def _use_until(self, milliseconds: int) -> None:
        link, logs = self._link, self._logs
        if link is None:
            return
        while (time := link.next_time()) <= milliseconds:
            if not (link.queued or logs):
                link.skip(now=milliseconds)
                return
            for log in logs:
                log.opportunity(time)
            for packet in link.step():
                assert isinstance(packet, Datagram)
                for log in logs:
                    log.departure(time, packet)
                data = with_mark(packet.data) if packet.marked else packet.data
                self._depart(data, time * MILLISECOND)

    def _depart(self, data: bytes, time: int) -> None:
        if self._loss and self._generator.random() < self._loss:
            return
        # Neither jitter nor a delay that falls lets packets overtake others.
        name = self._seed, 0, 0, next(self._packets)
        time += self._delay
        time += wait(self._config.jitter_kind, self._jitter, name, time)
        release = -(-time // self._tick) * self._tick
        self._last_release = max(release, self._last_release)
        if self._late and self._generator.random() < self._config.late_share:
            self._overtaken.append((self._last_release + self._late, data))
        else:
            self._flying.append((self._last_release, data))

    def _note_drops(self, now: int, *packets: Packet) -> None:
        if packets:
            for log in self._logs:
                log.drops(now, packets)
