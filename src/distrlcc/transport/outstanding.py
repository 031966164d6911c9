"""The packets that were sent and neither acknowledged nor found lost, by their numbers."""

from __future__ import annotations

Stamp = tuple[int, int, int, int]
"""What a packet remembers (see `distrlcc.transport.delivery`); first comes its send time, ns."""

_COMPACT = 1024


class Outstanding:
    """Stamps of outstanding packets; numbers go up by one from 0.

    A list that starts at a base number, with holes where packets are done: looking a packet up
    costs an index, and the front is cut off now and then. A number's place is ``number - base``.
    """

    __slots__ = ("_base", "_head", "_stamps", "count")

    def __init__(self) -> None:
        """Start with packet number 0 to come."""
        self._stamps: list[Stamp | None] = []
        self._base = 0
        self._head = 0
        self.count = 0
        """Packets outstanding."""

    @property
    def lowest(self) -> int:
        """Least outstanding number; the next one to be sent when none is."""
        return self._base + self._head

    def add(self, stamp: Stamp) -> None:
        """Remember the next packet."""
        self._stamps.append(stamp)
        self.count += 1

    def take(self, start: int, stop: int) -> list[tuple[int, Stamp]]:
        """Take ``[start, stop)`` out; return what was outstanding of it, lowest first.

        All numbers below ``stop`` must have been sent.
        """
        stamps, base = self._stamps, self._base
        taken = []
        for place in range(max(start - base, self._head), stop - base):
            stamp = stamps[place]
            if stamp is not None:
                stamps[place] = None
                taken.append((base + place, stamp))
        if taken:
            self.count -= len(taken)
            self._advance()
        return taken

    def _advance(self) -> None:
        """Move the head to the lowest outstanding packet; now and then cut off the front."""
        stamps, place = self._stamps, self._head
        while place < len(stamps) and stamps[place] is None:
            place += 1
        self._head = place
        if place >= _COMPACT and 2 * place >= len(stamps):
            del stamps[:place]
            self._base += place
            self._head = 0

    def below(self, number: int) -> list[tuple[int, int]]:
        """Return the outstanding packets below a number as (number, send time), lowest first."""
        base, stamps = self._base, self._stamps
        found = []
        for place in range(self._head, number - base):
            stamp = stamps[place]
            if stamp is not None:
                found.append((base + place, stamp[0]))
        return found
