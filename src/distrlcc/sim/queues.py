"""Queues of a bottleneck with mahimahi's rules, and their specifications.

Packets in transit do not count against a limit. CoDel and PIE follow RFC 8289 and RFC 8033;
mahimahi's two come from early drafts and drop other packets. Times are integers in the link's unit.
A specification reads ``droptail:packets=100``, in short ``100``, or
``codel:packets=1000,target=5,interval=100``.

| kind | parameters (limits: at least one of packets, bytes) |
|---|---|
| `infinite` | none |
| `droptail`, `drophead` | limits; a droptail also `mark` |
| `codel` | limits; `target` (5), `interval` (100), ms; `ecn` |
| `pie` | limits; `qdelay_ref` (15), `max_burst` (150), ms; `ecn` |

With ``ecn=1`` CoDel and PIE mark a packet whose sender takes marks instead of dropping it; PIE so
below a probability of 10%. A droptail marks such an arrival if it holds more than ``mark`` packets
with it, the step of RFC 8257.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from distrlcc.errors import ConfigError, unknown_name
from distrlcc.sim import aqm
from distrlcc.types import NANOSECONDS, PACKET_BYTES


@dataclass(slots=True)
class Packet:
    """A packet at the bottleneck."""

    size: int  # bytes on the wire
    arrival: int  # when it reached the queue
    flow: int = 0
    seq: int = 0
    capable: bool = False  # whether it may be marked (ECN)
    marked: bool = False


class DropTail:
    """Packets in order of arrival; one that does not fit is refused, none without limits."""

    def __init__(
        self, packets: int | None = None, bytes_: int | None = None, mark: int | None = None
    ) -> None:
        """Start empty; None: no limit. An arrival that makes more than ``mark`` is marked."""
        self._packets: deque[Packet] = deque()
        self._bytes = 0
        self._packet_limit, self._byte_limit = packets, bytes_
        self._mark = mark

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival; return the packets that are dropped for it, here itself at most."""
        if not self._fits(len(self) + 1, self._bytes + packet.size):
            return [packet]
        if self._mark is not None and len(self) >= self._mark and packet.capable:
            packet.marked = True
        self._add(packet)
        return []

    def pop(self, *, now: int) -> Packet | None:
        """Give the next packet to transmit at a time, or None; here the oldest, at any time."""
        return self._take()

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def oldest(self) -> Packet | None:
        """The packet that has waited longest."""
        return self._packets[0] if self._packets else None

    def _fits(self, packets: int, size: int) -> bool:
        return (self._packet_limit is None or packets <= self._packet_limit) and (
            self._byte_limit is None or size <= self._byte_limit
        )

    def _add(self, packet: Packet) -> None:
        self._packets.append(packet)
        self._bytes += packet.size

    def _take(self) -> Packet | None:
        if not self._packets:
            return None
        packet = self._packets.popleft()
        self._bytes -= packet.size
        return packet


class DropHead(DropTail):
    """Takes every arrival and drops the oldest packets until the rest fits."""

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival, dropping from the head."""
        self._add(packet)
        dropped = []
        while not self._fits(len(self), self._bytes) and (oldest := self._take()):
            dropped.append(oldest)
        return dropped


class CoDel(DropTail):
    """Drops from the head once packets have waited above a target for an interval (RFC 8289)."""

    def __init__(
        self,
        target: int,
        interval: int,
        packets: int | None = None,
        bytes_: int | None = None,
        on_drop: Callable[[int, Packet], None] | None = None,
        ecn: bool = False,
    ) -> None:
        """Start empty; `pop` calls ``on_drop`` with time and packet; with ``ecn`` it marks."""
        super().__init__(packets, bytes_)
        self._row = aqm.codel_row(target, interval)
        self._on_drop = on_drop
        self._ecn = ecn

    def pop(self, *, now: int) -> Packet | None:
        """Give the next packet that is not dropped, or None."""
        while True:
            packet = self._take()
            arrival = now if packet is None else packet.arrival
            capable = self._ecn and packet is not None and packet.capable
            fate = aqm.codel_fate(self._row, now, arrival, self._bytes, capable)
            if packet is not None and fate == aqm.MARK:
                packet.marked = True
            if fate != aqm.DROP:
                return packet
            if self._on_drop is not None and packet is not None:
                self._on_drop(now, packet)


class PIE(DropTail):
    """Drops arrivals with a probability that follows the waiting time (RFC 8033)."""

    def __init__(
        self,
        reference: int,
        max_burst: int,
        unit: int,
        draw: Callable[[Packet], float],
        packets: int | None = None,
        bytes_: int | None = None,
        ecn: bool = False,
    ) -> None:
        """Start empty at time 0; a ms is ``unit``, and ``draw`` draws a lot in [0, 1)."""
        super().__init__(packets, bytes_)
        self.row = aqm.pie_row(reference, max_burst, unit)
        self._draw = draw
        self._ecn = ecn

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival, or drop it by lottery or limit."""
        self._catch_up(packet.arrival)
        if self._fits(len(self) + 1, self._bytes + packet.size):
            chance = aqm.pie_chance(self.row, self._bytes)
            if chance > 0:
                fate = aqm.pie_fate(chance, self._draw(packet), self._ecn and packet.capable)
                if fate == aqm.DROP:
                    return [packet]
                if fate == aqm.MARK:
                    packet.marked = True
        return super().push(packet)

    def pop(self, *, now: int) -> Packet | None:
        """Give the oldest packet, or None."""
        self._catch_up(now)
        return self._take()

    def _catch_up(self, now: int) -> None:
        oldest = self.oldest
        aqm.pie_catch_up(self.row, now, math.inf if oldest is None else oldest.arrival)


class Policer:
    """A token bucket before a queue; times are ns."""

    def __init__(self, rate: int, bytes_: int) -> None:
        """Start with a full bucket of a size, which fills at a rate in bit/s."""
        self._rate = rate
        self._size = self._tokens = bytes_ * 8 * NANOSECONDS
        self._time = 0

    def passes(self, packet: Packet) -> bool:
        """Take a packet's bits out of the bucket at its arrival, or say that it lacks them."""
        self._tokens += self._rate * (packet.arrival - self._time)
        self._tokens = min(self._tokens, self._size)
        self._time = packet.arrival
        bits = packet.size * 8 * NANOSECONDS
        if self._tokens < bits:
            return False
        self._tokens -= bits
        return True


_LIMITS = ("packets", "bytes")
_TIMES = {"codel": {"target": 5, "interval": 100}, "pie": {"qdelay_ref": 15, "max_burst": 150}}
_MARKS = {"droptail": "mark", "codel": "ecn", "pie": "ecn"}
_MAXIMUM = 10**12
KINDS = ("droptail", "drophead", "codel", "pie", "infinite")


@dataclass(frozen=True)
class QueueSpec:
    """Which queue, and its parameters."""

    kind: str = "infinite"  # one of `KINDS`
    packets: int | None = None  # limit in packets; None: none
    bytes: int | None = None  # limit in bytes, 4 of TUN header a packet included; None: none
    times_ms: tuple[tuple[str, int], ...] = ()  # the times' names and values, ms
    mark: int | None = None
    """The packets above which a droptail marks; 1 where CoDel or PIE marks; None: no marks."""

    @property
    def arguments(self) -> str:
        """Return the parameters as mahimahi's ``--uplink-queue-args`` takes them."""
        limits = ("bytes", self.bytes), ("packets", self.packets)
        pairs = (*limits, *self.times_ms, (_MARKS.get(self.kind, ""), self.mark))
        return ", ".join(f"{name}={value}" for name, value in pairs if value is not None)

    def build(
        self,
        *,
        unit: int,
        draw: Callable[[Packet], float],
        on_drop: Callable[[int, Packet], None] | None = None,
    ) -> DropTail:
        """Make an empty queue of ``unit`` a ms; ``on_drop`` gets drops that are no arrival's."""
        limits, ecn = (self.packets, self.bytes), self.mark is not None
        if self.kind in _TIMES:
            first, second = (value * unit for _, value in self.times_ms)
            if self.kind == "codel":
                return CoDel(first, second, *limits, on_drop, ecn)
            return PIE(first, second, unit, draw, *limits, ecn)
        return DropHead(*limits) if self.kind == "drophead" else DropTail(*limits, self.mark)


def parse_queue(text: str) -> QueueSpec:
    """Read a specification; raises ConfigError."""
    # The kind says which parameters there are; a number alone is a droptail's packets.
    if text.isascii() and text.isdigit():
        text = f"droptail:packets={text}"
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise unknown_name("queue", kind, KINDS)
    times = dict(_TIMES.get(kind, {}))
    names = () if kind == "infinite" else (*_LIMITS, *times)
    names += (_MARKS[kind],) if kind in _MARKS else ()
    # Each parameter, once.
    given: dict[str, int] = {}
    for part in rest.split(",") if rest else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in names:
            expected = f"expected {', '.join(names)}" if names else "it takes none"
            raise ConfigError(f"queue {text!r}: no parameter {name!r}; {expected}")
        if name in given:
            raise ConfigError(f"queue {text!r}: {name} is given twice")
        most = 1 if name == "ecn" else _MAXIMUM
        if not (value.isascii() and value.isdigit() and 1 <= int(value[:20]) <= most):
            expected = "1, or leave it out" if most == 1 else "a whole number of 1 or more"
            raise ConfigError(f"queue {text!r}: {name} is {value!r}; expected {expected}")
        given[name] = int(value)
    # Limits that leave room for a packet.
    if names and not any(limit in given for limit in _LIMITS):
        raise ConfigError(
            f"queue {text!r} has no limit; say {kind}:packets=100 or {kind}:bytes=150000, "
            "or infinite"
        )
    if given.get("bytes", PACKET_BYTES) < PACKET_BYTES:
        raise ConfigError(
            f"queue {text!r}: bytes is {given['bytes']}; expected {PACKET_BYTES} or more, "
            "else no full packet fits"
        )
    # What never marks, and a target that no queue is above for an interval.
    values = times | given
    for low, high in (("mark", "packets"), ("target", "interval")):
        if values.get(low, 0) >= values.get(high, math.inf):
            raise ConfigError(
                f"queue {text!r}: {low} is {values[low]}; expected less than {high}, {values[high]}"
            )
    times_ms = tuple((name, given.get(name, default)) for name, default in times.items())
    mark = given.get(_MARKS.get(kind, ""))
    return QueueSpec(kind, given.get("packets"), given.get("bytes"), times_ms, mark)
