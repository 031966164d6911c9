"""When the next paced packet may leave."""

from __future__ import annotations

from distrlcc.types import NANOSECONDS


def pacing_interval(rate: float) -> int:
    """Return the time between two packets at a rate in packets/s, ns."""
    return int(min(NANOSECONDS / rate, 1e18))


class Pacer:
    """Spaces packets by ``floor(1e9 / rate)`` ns."""

    __slots__ = ("_catch_up", "next_time")

    def __init__(self, catch_up: int = 0, *, now: int) -> None:
        """Let the first packet leave at once.

        Args:
            catch_up: A sender that wakes late makes up for what it missed in this long, ns, with a
                small burst; without it each late wake-up lowers the rate.
            now: Time, ns.
        """
        self._catch_up = catch_up
        self.next_time = now
        """When the next packet may leave, ns."""

    def sent(self, rate: float, *, now: int) -> None:
        """Take note of a packet that left at a rate in packets/s."""
        self.next_time = max(self.next_time, now - self._catch_up) + pacing_interval(rate)

    def restart(self, rate: float, *, now: int) -> None:
        """Follow a rate that was set from outside: no later than one interval from now."""
        earliest = max(self.next_time, now - self._catch_up)
        self.next_time = min(earliest, now + pacing_interval(rate))
