"""Sorted disjoint half-open ranges of integers: packet numbers, or bytes of a file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """A set of integers kept as ranges ``[start, stop)`` that neither overlap nor touch."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        """Start empty."""
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        """Count the ranges, not the integers."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges, lowest first."""
        return zip(self._starts, self._stops, strict=True)

    def __contains__(self, number: int) -> bool:
        """Tell whether an integer is in the set."""
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._stops[place]

    def newest(self, limit: int) -> tuple[tuple[int, int], ...]:
        """Return up to ``limit`` ranges, highest first."""
        if len(self._starts) == 1:
            return ((self._starts[0], self._stops[0]),)
        starts, stops = self._starts[-limit:], self._stops[-limit:]
        return tuple(zip(reversed(starts), reversed(stops), strict=True))

    def first_missing(self, start: int = 0) -> int:
        """Return the least integer, not below ``start``, that is not in the set."""
        place = bisect_right(self._starts, start) - 1
        return max(self._stops[place], start) if place >= 0 else start

    def add(self, start: int, stop: int) -> int:
        """Add ``[start, stop)``; return how many of its integers are new."""
        starts, stops = self._starts, self._stops
        if stops and start == stops[-1]:
            stops[-1] = stop
            return stop - start
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return stop - start
        # The ranges from `first` to before `last` touch or overlap the new one.
        first, last = bisect_left(stops, start), bisect_right(starts, stop)
        if first == last:
            starts.insert(first, start)
            stops.insert(first, stop)
            return stop - start
        low, high = min(start, starts[first]), max(stop, stops[last - 1])
        before = sum(stops[first:last]) - sum(starts[first:last])
        starts[first:last] = [low]
        stops[first:last] = [high]
        return high - low - before

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of ``[start, stop)`` that are not in the set, lowest first."""
        gaps = []
        place = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop and place < len(self._starts):
            if self._starts[place] >= stop:
                break
            if self._starts[place] > start:
                gaps.append((start, self._starts[place]))
            start = max(start, self._stops[place])
            place += 1
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def drop_below(self, number: int) -> None:
        """Take every integer below ``number`` out of the set."""
        place = bisect_right(self._stops, number)
        del self._starts[:place], self._stops[:place]
        if self._starts and self._starts[0] < number:
            self._starts[0] = number

    def drop_lowest(self) -> int:
        """Take the lowest range out; return where it stopped."""
        self._starts.pop(0)
        return self._stops.pop(0)
