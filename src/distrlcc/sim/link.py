"""Bottleneck links, event by event, with explicit queues: slow, obvious, and the judge.

`TraceLink` has mahimahi's semantics to the byte: `replay` puts a real log's arrivals into it, and
everything else in the log must match. `RateLink` serves at a rate that follows a schedule. Both
know no clock; time is an integer in any unit. Three methods drive a link. `next_time` says when to
call `step`. `step` does the work due then and returns the packets that depart. `arrive` takes a
packet and returns those that are dropped for it.

A mahimahi log has lines ``T + SIZE`` (arrival), ``T # 1504`` (opportunity), ``T - SIZE DELAY``
(departure) and ``T d PACKETS BYTES`` (drop), times in ms. Header lines with ``#`` come first. They
name the queue and the base timestamp, which is the trace's time zero.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from distrlcc.errors import TraceError, reading
from distrlcc.sim.queues import PIE, CoDel, DropHead, DropTail, Packet
from distrlcc.sim.trace import Trace
from distrlcc.types import NANOSECONDS, PACKET_BYTES

NEVER = 1 << 62


class TraceLink:
    """A link that sends at a trace's opportunities, as mahimahi's mm-link."""

    def __init__(self, times: Sequence[int], queue: DropTail, *, base: int = 0) -> None:
        """Start at the trace's time zero, which is at ``base``; the last time is the period."""
        self._queue = queue
        self.follow(times, base=base)
        self._transit: Packet | None = None
        self._left = 0

    def follow(self, times: Sequence[int], *, base: int) -> None:
        """Go on with another trace, from its time zero at ``base``; what waits or moves stays."""
        self._times, self._base, self._place = times, base, 0
        self._due = base + int(times[0])

    @property
    def queued(self) -> int:
        """Packets that wait or are in transit; without any, opportunities will be lost."""
        return len(self._queue) + (self._transit is not None)

    def next_time(self) -> int:
        """Return the next opportunity's time; a link is never without one."""
        return self._due

    def skip(self, *, now: int) -> None:
        """Lose the opportunities up to a time at once; for an idle link that nobody logs."""
        if self._due > now:
            return
        period = int(self._times[-1])
        periods, elapsed = divmod(now - self._base, period)
        if periods:
            self._base += periods * period
            self._place = 0
        self._place = bisect_right(self._times, elapsed, lo=self._place)
        self._due = self._base + int(self._times[self._place])

    def step(self) -> list[Packet]:
        """Use one opportunity; its bytes are shared by packets, and lost when none is left."""
        now = self._due
        self._place += 1
        if self._place == len(self._times):
            self._place = 0
            self._base += int(self._times[-1])
        self._due = self._base + int(self._times[self._place])
        departed = []
        budget = PACKET_BYTES
        while budget > 0:
            if self._transit is None:
                self._transit = self._queue.pop(now=now)
                if self._transit is None:
                    break
                self._left = self._transit.size
            amount = min(budget, self._left)
            budget -= amount
            self._left -= amount
            if self._left == 0:
                departed.append(self._transit)
                self._transit = None
        return departed

    def arrive(self, packet: Packet) -> list[Packet]:
        """Queue a packet; opportunities up to its arrival must have been used before."""
        return self._queue.push(packet)


class RateLink:
    """A link that serves one packet after another at a rate in bit/s; times are ns.

    The packet in service still counts against a droptail's limit, as in a router whose interface
    holds a reference until the last bit has left. CoDel and PIE give it away as its service begins.
    """

    def __init__(self, schedule: Sequence[tuple[int, int]], queue: DropTail) -> None:
        """Start idle at time zero, the first of the schedule of (time, bit/s)."""
        self._changes = list(schedule[1:])
        self._rate = schedule[0][1]
        self._queue = queue
        self._gives_away = isinstance(queue, CoDel | PIE)
        self._serving: Packet | None = None
        self._work = 0  # bits * ns/s of the packet in service still to serve at `_since`
        self._since = 0
        self._plan()

    @property
    def queued(self) -> int:
        """Packets in the queue and in service."""
        return len(self._queue) + (self._gives_away and self._serving is not None)

    def next_time(self) -> int:
        """Return the next change's or departure's time."""
        return self._next

    def _plan(self) -> None:
        change = self._changes[0][0] if self._changes else NEVER
        if self._serving is None or self._rate == 0 < self._work:
            self._next = change
            return
        departure = self._since
        if self._work > 0:
            departure += -(-self._work // self._rate)
        self._next = min(change, departure)

    def step(self) -> list[Packet]:
        """Change the rate, or let the packet in service depart; changes come first."""
        now = self._next
        if self._changes and self._changes[0][0] == now:
            self._work -= self._rate * (now - self._since)
            self._since = now
            self._rate = self._changes.pop(0)[1]
            self._plan()
            return []
        served = self._serving
        if not self._gives_away:
            self._queue.pop(now=now)
        self._serve(now)
        return [served] if served is not None else []

    def arrive(self, packet: Packet) -> list[Packet]:
        """Queue a packet and serve it at once when the link is idle."""
        dropped = self._queue.push(packet)
        if self._serving is None:
            self._serve(packet.arrival)
        return dropped

    def _serve(self, now: int) -> None:
        self._serving = self._queue.pop(now=now) if self._gives_away else self._queue.oldest
        if self._serving is not None:
            self._work, self._since = self._serving.size * 8 * NANOSECONDS, now
        self._plan()


_LINE = re.compile(r"(T) (?:([+#]) (T)|(-) (T) (T)|(d) (T) (T))$".replace("T", r"\d{1,18}"))
_UNSAID = 1_000_000  # opportunities that a log may lack; each one is stepped through


@dataclass(frozen=True)
class Log:
    """A mahimahi log of one direction."""

    queue: str  # ``droptail``, ``drophead`` or ``infinite``
    packets: int | None
    bytes: int | None
    base: int  # time of the trace's zero, ms
    events: tuple[tuple[int, str, int, int], ...]
    """(time in ms, one of ``+#-d``, size or packets, delay or bytes)."""
    port: int | None = None  # the port whose packets alone stand in it; None: all packets do


@dataclass(frozen=True)
class Replay:
    """The findings of a replay."""

    arrivals: int
    opportunities: int
    departures: int
    drops: int
    mismatches: tuple[str, ...]


def read_log(path: Path) -> Log:
    """Read a log; raises TraceError if it is not of mahimahi's form."""
    if path.exists() and not path.is_file():
        raise TraceError(f"{path} is not a regular file; expected a log of mm-link")
    with reading(TraceError, f"{path}: cannot be read as a mahimahi log"):
        # Other line ends are part of a command line that stands in the header.
        return _parse_log(path, path.read_bytes().decode("utf-8", "surrogateescape").split("\n"))


def _parse_log(path: Path, lines: Sequence[str]) -> Log:
    # The header: queue, its limits, base timestamp, and the port where there is one.
    header = "\n".join(line for line in lines if line.startswith("#"))
    base = re.search(r"^# base timestamp: (-?\d+)", header, re.MULTILINE)
    port = re.search(r"^# port: (\d+)", header, re.MULTILINE)
    queue = re.search(r"^# queue: (\w+)(?: \[(.*)\])?", header, re.MULTILINE)
    if base is None or queue is None:
        raise TraceError(
            f"{path}: no '# queue:' and '# base timestamp:' header; expected a log of mm-link"
        )
    limits = {k: int(v) for k, v in re.findall(r"(packets|bytes)=(\d+)", queue[2] or "")}
    # The events.
    events = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        match = _LINE.match(line.strip())
        if match is None:
            raise TraceError(f"{path}, line {number}: {line[:60]!r} is no line of a mahimahi log")
        time, *rest = (part for part in match.groups() if part is not None)
        events.append((int(time), rest[0], int(rest[1]), int(rest[2]) if len(rest) > 2 else 0))
    held = limits.get("packets"), limits.get("bytes")
    return Log(queue[1], *held, int(base[1]), tuple(events), int(port[1]) if port else None)


def replay(log: Log, trace: Trace) -> Replay:
    """Feed a log's arrivals to the link model and compare all that it says happened.

    Raises TraceError at a log of a queue that does not replay, or of a part of the packets.
    """
    if log.queue not in ("droptail", "drophead", "infinite"):
        raise TraceError(
            f"a queue of kind {log.queue!r} does not replay; expected droptail, drophead or "
            "infinite"
        )
    if log.port is not None:
        raise TraceError(
            f"the log holds the packets of port {log.port} alone, which does not replay; give the "
            "link's whole log"
        )
    if all(event[1] != "+" for event in log.events):
        raise TraceError("no packet arrives in the log, so that there is nothing to compare")
    queue: DropTail = (DropHead if log.queue == "drophead" else DropTail)(log.packets, log.bytes)
    found: list[tuple[int, str, int, int]] = []
    times = (trace.times_ns // 1_000_000).tolist()
    link = TraceLink(times, queue, base=log.base)
    stamps = [event[0] for event in log.events] or [0]  # a stranger's need not be in order
    first, last = min(stamps), max(stamps)
    if (last - first) // times[-1] * len(times) > _UNSAID + 2 * len(log.events):
        raise TraceError(
            f"the log's last time is {last} ms, and most opportunities until then do not stand "
            "in it; expected a log of this trace"
        )
    link.skip(now=first - 1)  # a log may begin inside its trace

    def use_until(now: int) -> None:
        while (time := link.next_time()) <= now:
            found.append((time, "#", 1504, 0))
            found.extend((time, "-", p.size, time - p.arrival) for p in link.step())

    for time, kind, size, _ in log.events:
        if kind != "+":
            continue
        use_until(time)
        found.append((time, "+", size, 0))
        dropped = link.arrive(Packet(size, time))
        if dropped:
            found.append((time, "d", len(dropped), sum(p.size for p in dropped)))
    if log.events:
        use_until(last)
    # What the log says, kind by kind, beside what happened here.
    mismatches = []
    for kind, name in (("#", "opportunity"), ("-", "departure"), ("d", "drop")):
        said, ours = ([e for e in events if e[1] == kind] for events in (log.events, found))
        pairs = enumerate(zip_longest(said, ours))
        mismatches += [f"{name} {k}: log {a}, model {b}" for k, (a, b) in pairs if a != b]
    counts = {kind: sum(e[1] == kind for e in log.events) for kind in "+#-d"}
    return Replay(counts["+"], counts["#"], counts["-"], counts["d"], tuple(mismatches))
