"""Which machines are measured with which, and when."""

from __future__ import annotations

from dataclasses import dataclass

_ALL = 8
"""Up to so many machines every pair is measured; beyond, each with the head and its next two."""


@dataclass(frozen=True)
class Pair:
    """Two machines by their numbers."""

    first: int
    second: int


def rounds(count: int) -> list[list[Pair]]:
    """Return rounds of pairs in which no machine meets two others, as at a tournament.

    Each pair meets once. Of more than eight machines not all pairs meet: that would take too long.
    """
    if count < 2:
        return []
    chosen = {
        Pair(first, second)
        for first in range(count)
        for second in range(first + 1, count)
        if count <= _ALL or first == 0 or second - first <= 2
    }
    even = count + count % 2
    found = []
    for turn in range(even - 1):
        # The circle method: the last one stays, the others move on by one seat.
        seats = [(turn + seat) % (even - 1) for seat in range(even - 1)]
        meets = [(seats[0], even - 1)]
        meets += [(seats[k], seats[even - 1 - k]) for k in range(1, even // 2)]
        pairs = [Pair(min(meet), max(meet)) for meet in meets if max(meet) < count]
        kept = [pair for pair in pairs if pair in chosen]
        if kept:
            found.append(kept)
    return found
