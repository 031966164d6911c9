"""Bottleneck links, event by event, with explicit queues: slow, obvious, and the judge.

`TraceLink` has mahimahi's semantics to the byte (`distrlcc check link` replays its logs).
`RateLink` serves at a rate that follows a schedule. Both know no clock; time is an integer in any
unit, and each is driven by `next_time`, `step` and `arrive`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

from distrlcc.sim.queues import Packet, Queue
from distrlcc.types import NANOSECONDS, PACKET_BYTES

NEVER = 1 << 62


class BottleneckLink(Protocol):
    """What the reference simulator and the emulator drive."""

    def next_time(self) -> int:
        """Return when `step` must be called next; `NEVER` while idle."""

    def step(self) -> list[Packet]:
        """Do what is due at `next_time`; return the packets that depart then."""

    def arrive(self, packet: Packet) -> list[Packet]:
        """Take a packet at its arrival time; return the packets that are dropped."""


class TraceLink:
    """A link that sends at a trace's opportunities, as mahimahi's mm-link."""

    def __init__(
        self,
        times: Sequence[int],
        queue: Queue,
        *,
        base: int = 0,
        on_opportunity: Callable[[int], None] | None = None,
    ) -> None:
        """Start at the trace's time zero.

        Args:
            times: Opportunities, not decreasing; the last is the period.
            queue: Where packets wait.
            base: Time of the trace's zero.
            on_opportunity: Told the time of every opportunity, used or not.
        """
        self._queue = queue
        self.follow(times, base=base)
        self._transit: Packet | None = None
        self._left = 0
        self.on_opportunity = on_opportunity

    def follow(self, times: Sequence[int], *, base: int) -> None:
        """Go on with another trace, from its time zero at ``base``; what waits or moves stays."""
        self._times, self._base, self._place = times, base, 0
        self._due = base + int(times[0])

    @property
    def idle(self) -> bool:
        """Whether no packet waits or is in transit, so that opportunities will be lost."""
        return self._transit is None and not len(self._queue)

    def next_time(self) -> int:
        """Return the next opportunity's time; a link is never without one."""
        return self._due

    def skip(self, *, now: int) -> None:
        """Lose the opportunities up to a time at once; for an idle link of which nobody is told."""
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
        if self.on_opportunity is not None:
            self.on_opportunity(now)
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

    The packet in service still counts against the queue's limit, as in a router whose interface
    holds a reference until the last bit has left.
    """

    def __init__(self, schedule: Sequence[tuple[int, int]], queue: Queue) -> None:
        """Start idle at time zero.

        Args:
            schedule: (time, bit/s) in order of time; the first time is 0.
            queue: Where packets wait; its limit counts the packet in service.
        """
        self._changes = list(schedule[1:])
        self._rate = schedule[0][1]
        self._queue = queue
        self._serving: Packet | None = None
        self._work = 0  # bits * ns/s still to serve at `_since`
        self._since = 0
        self._waiting: list[Packet] = []

    def _departure(self) -> int:
        if self._serving is None:
            return NEVER
        if self._work <= 0:
            return self._since
        if self._rate == 0:
            return NEVER
        return self._since + -(-self._work // self._rate)

    def next_time(self) -> int:
        """Return the next change's or departure's time."""
        change = self._changes[0][0] if self._changes else NEVER
        return min(change, self._departure())

    def step(self) -> list[Packet]:
        """Change the rate, or let the packet in service depart; changes come first."""
        now = self.next_time()
        if self._changes and self._changes[0][0] == now:
            self._work -= self._rate * (now - self._since)
            self._since = now
            self._rate = self._changes.pop(0)[1]
            return []
        served = self._queue.pop(now=now)
        assert served is self._serving
        self._serving = None
        self._serve(now)
        return [served] if served is not None else []

    def arrive(self, packet: Packet) -> list[Packet]:
        """Queue a packet and serve it at once when the link is idle."""
        dropped = self._queue.push(packet)
        if not dropped:
            self._waiting.append(packet)
            if self._serving is None:
                self._serve(packet.arrival)
        return dropped

    def _serve(self, now: int) -> None:
        if self._waiting:
            self._serving = self._waiting.pop(0)
            self._work = self._serving.size * 8 * NANOSECONDS
            self._since = now
