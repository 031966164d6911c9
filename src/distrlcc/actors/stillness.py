"""For how long a thread has not moved on, but for the time that no core was free for it.

Twenty workers that start on two cores wait for a core longer than a hung environment is waited
for; Linux counts that wait for each thread.
"""

from __future__ import annotations

import time
from pathlib import Path

MOST_WAIT_SECONDS = 60.0
"""Wait for a core that counts as no stillness, at most: one that computes without end waits too."""
_NANOSECONDS = 1e-9


class Stillness:
    """Of one thread, which calls :meth:`moved`; others may ask."""

    def __init__(self) -> None:
        """Begin now."""
        self._moved = self._seen = time.monotonic()
        self._waited = 0.0

    def moved(self) -> None:
        """Note that the thread has moved on."""
        self._moved = time.monotonic()

    def seconds(self, thread: int | None) -> float:
        """Return for how long it has not moved, s, without its wait for a core.

        Ask every second or so: the wait before the first question after a move counts as stillness.

        Args:
            thread: Its `threading.Thread.native_id`; None before its start.
        """
        moved, waited = self._moved, waited_for_core(thread)
        if moved != self._seen:
            self._seen, self._waited = moved, waited
        excused = min(waited - self._waited, MOST_WAIT_SECONDS)
        return max(time.monotonic() - moved - excused, 0.0)


def waited_for_core(thread: int | None) -> float:
    """Return how long a thread of this process could have run but had no core, s.

    It is 0 where the system does not tell, and while it waits for its first.
    """
    if thread is None:
        return 0.0
    try:
        text = Path(f"/proc/self/task/{thread}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(text.split()[1]) * _NANOSECONDS
