"""When to send a datagram again that was not answered."""

from __future__ import annotations

from dataclasses import dataclass

from distrlcc.transport.loss import NEVER
from distrlcc.types import NANOSECONDS


@dataclass(frozen=True)
class RepeatOptions:
    """Waiting times that double, and an end."""

    first_ns: int = 250_000_000
    """Wait before the first repetition, ns; each later wait is twice the one before ..."""
    longest_ns: int = 2 * NANOSECONDS
    """... up to this, ns."""
    limit_ns: int = 10 * NANOSECONDS
    """When to give up, counted from the start, ns."""


class Repeat:
    """Times of one datagram and its repetitions."""

    def __init__(self, options: RepeatOptions, *, now: int) -> None:
        """Make the first sending due at once."""
        self._options = options
        self._wait = options.first_ns
        self._end = now + options.limit_ns
        self._due = now

    def next_time(self) -> int:
        """Return when something is due: the next sending or the end, ns."""
        return min(self._due, self._end)

    def expired(self, *, now: int) -> bool:
        """Tell whether it is time to give up."""
        return now >= self._end

    def take(self, *, now: int) -> bool:
        """Tell whether to send now; then the next repetition is planned."""
        if now < self._due or now >= self._end:
            return False
        self._due = now + self._wait
        self._wait = min(2 * self._wait, self._options.longest_ns)
        return True

    def restart(self, *, now: int) -> None:
        """Send at once and start with the shortest wait again; the end stays."""
        self._due = now
        self._wait = self._options.first_ns

    def stop(self) -> None:
        """Let nothing be due any more."""
        self._due = self._end = NEVER
