"""The receiver of one session, sans-IO: which packets came, and what to acknowledge."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice

from distrlcc.transport.wire import MAX_RANGES, Acknowledgement

KEPT_RANGES = 16_384  # ranges that are remembered; of more, the lowest are dropped


class Ranges:
    """A set of numbers kept as ranges ``[start, stop)`` that neither overlap nor touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        """Count the ranges, not the numbers."""
        return len(self._starts)

    def newest(self, limit: int, numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Return up to ``limit`` ranges, highest first: those of some numbers, and the highest."""
        places = {bisect_right(self._starts, number) - 1 for number in numbers} - {-1}
        others = (k for k in range(len(self) - 1, -1, -1) if k not in places)
        places.update(islice(others, max(limit - len(places), 0)))
        return tuple((self._starts[k], self._stops[k]) for k in sorted(places, reverse=True))

    def add(self, number: int) -> bool:
        """Add a number; return whether it is new."""
        starts, stops = self._starts, self._stops
        place = bisect_right(starts, number)  # the ranges before begin at the number or below
        if place and number < stops[place - 1]:
            return False
        extends = place > 0 and stops[place - 1] == number
        precedes = place < len(starts) and starts[place] == number + 1
        if extends and precedes:
            del starts[place], stops[place - 1]
        elif extends:
            stops[place - 1] = number + 1
        elif precedes:
            starts[place] = number
        else:
            starts.insert(place, number)
            stops.insert(place, number + 1)
        return True

    def drop_below(self, number: int) -> None:
        """Drop every number below this one."""
        place = bisect_right(self._stops, number)
        del self._starts[:place], self._stops[:place]
        if self._starts and self._starts[0] < number:
            self._starts[0] = number

    def drop_lowest(self) -> int:
        """Drop the lowest range; return where it stopped."""
        self._starts.pop(0)
        return self._stops.pop(0)


class Receiver:
    """Remembers packet numbers within bounds, and counts."""

    def __init__(self, session: int) -> None:
        self.session = session
        self.packets = 0  # packets received, duplicates left out
        self.bytes = 0  # UDP payload bytes of these
        self.duplicates = 0  # packets received again, or too old to tell
        self.reordered = 0  # packets that came after one with a higher number
        self._largest = -1
        self._ranges = Ranges()
        self._floor = 0  # numbers below are done with
        self._unacknowledged: list[int] = []

    @property
    def ack_is_full(self) -> bool:
        """Whether an ACK of more packets could leave out one: each may be a range of its own."""
        return len(self._unacknowledged) >= MAX_RANGES

    def on_data(self, number: int, size: int, lowest: int = 0) -> bool:
        """Receive a packet of ``size`` bytes; return if it is new. ``lowest`` is waited for."""
        ranges = self._ranges
        self._unacknowledged.append(number)
        if number < self._floor or not ranges.add(number):
            self.duplicates += 1
            return False
        self.packets += 1
        self.bytes += size
        self.reordered += number < self._largest
        self._largest = max(self._largest, number)
        if lowest > self._floor:
            self._floor = lowest
            ranges.drop_below(lowest)
        while len(ranges) > KEPT_RANGES:
            self._floor = ranges.drop_lowest()
        return True

    def ack_to_send(self) -> Acknowledgement | None:
        """Return one ACK of all packets since the last, and of the newest; None without any."""
        if not self._unacknowledged or not len(self._ranges):
            return None
        ranges = self._ranges.newest(MAX_RANGES, self._unacknowledged[-MAX_RANGES:])
        self._unacknowledged.clear()
        return Acknowledgement(self.session, ranges)
