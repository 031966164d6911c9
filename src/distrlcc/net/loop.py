"""The emulator's loop: packets from one end, through the link, to the other, on time."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from contextlib import suppress

from distrlcc.net.direction import Direction
from distrlcc.net.ends import Descriptor, End
from distrlcc.types import NANOSECONDS

_BATCH = 64
_LONGEST_WAIT = 0.5


class Loop:
    """Drives both directions with select, whose timeouts are exact to us (epoll's are ms)."""

    def __init__(
        self, inner: End, outer: End, up: Direction, down: Direction, clock: Callable[[], int]
    ) -> None:
        """Take the ends, the directions and a clock of ns since the start."""
        self._ways = ((inner, up, outer), (outer, down, inner))
        self._ends: tuple[Descriptor, ...] = (inner, outer)
        self._clock = clock

    def turn(self, others: Iterable[Descriptor]) -> list[Descriptor]:
        """Carry packets until the next moment that something happens.

        Args:
            others: Descriptors to wait for as well.

        Returns:
            Those of ``others`` that are readable.
        """
        now = self._clock()
        due = min(direction.next_time(now=now) for _, direction, _ in self._ways)
        wait = min(max(due - now, 0) / NANOSECONDS, _LONGEST_WAIT)
        readable, _, _ = select.select((*self._ends, *others), [], [], wait)
        for end, direction, other in self._ways:
            if end in readable:
                self._take(end, direction)
            self._give(direction, other)
        return [other for other in readable if other not in self._ends]

    def _take(self, end: End, direction: Direction) -> None:
        clock = self._clock
        with suppress(BlockingIOError):
            for _ in range(_BATCH):
                data = end.read()
                now = clock()
                direction.advance(now=now)
                direction.arrive(data, now=now)

    def _give(self, direction: Direction, other: End) -> None:
        now = self._clock()
        direction.advance(now=now)
        for data in direction.arrivals(now=now):
            # A device that COMMAND took down loses packets, as a cable that is pulled.
            with suppress(OSError):
                other.write(data)
