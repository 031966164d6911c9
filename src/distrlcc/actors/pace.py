"""The pace of a worker's steps where each lasts as long as on a real link."""

from __future__ import annotations

import math
import time

import numpy as np

from distrlcc.scheduling import run_normally, run_on_time

LATENESS_SECONDS = 5e-5 * 2.0 ** (np.arange(32) / 2.0)
"""Bounds of the bins in which steps are counted by how late they ended, s."""
LATE_SECONDS = 1e-3
_LOST_SECONDS = 1.0
"""A deadline missed by this much starts the clock anew."""
_RECOVERED_STEPS = 50


def phase(index: int) -> float:
    """Return which part of a step's time worker ``index`` begins its steps after others do.

    As links that do not know of each other, workers of one machine do not step all at once; spread
    evenly for any number of workers (van der Corput's sequence), each finds a core that is free.
    """
    total, part = 0.0, 0.5
    while index:
        total += part * (index & 1)
        index, part = index >> 1, part / 2.0
    return total


class Pace:
    """Keeps the calling thread's steps to their times, and counts those that were late."""

    def __init__(self, seconds: float, index: int) -> None:
        """Take the time that a step lasts, s, and which of the workers this is."""
        self._seconds, self._first = seconds, phase(index) * seconds
        self._deadline = 0.0
        self._hurried, self._in_time = False, 0
        self.steps = self.late = 0
        """Steps; of these, those that ended more than `LATE_SECONDS` after their deadline."""
        self.lateness = np.zeros(len(LATENESS_SECONDS) + 1, np.int64)
        """All steps by the bins of `LATENESS_SECONDS`."""

    def begin(self) -> None:
        """Begin; called by the thread that steps, which gets a core as soon as it wakes up."""
        self._hurried = run_on_time()
        self._deadline = self._next_tick()

    def keep(self) -> None:
        """Wait for the end of the step that was taken."""
        self.steps += 1
        self._deadline += self._seconds
        now = time.monotonic()
        if now < self._deadline:
            time.sleep(self._deadline - now)
            now = time.monotonic()
            self._in_time += 1
            if not self._hurried and self._in_time == _RECOVERED_STEPS:
                self._hurried = run_on_time()
        late = now - self._deadline
        self.lateness[np.searchsorted(LATENESS_SECONDS, late)] += 1
        if late > LATE_SECONDS:
            self.late += 1
            if late > _LOST_SECONDS:
                self._give_way()

    def pardon(self) -> None:
        """Begin anew with the next step, as time has passed that was not this thread's fault."""
        self._deadline = max(self._deadline, self._next_tick())

    def _give_way(self) -> None:
        """Let others run before a thread that does not sleep, until it does."""
        run_normally()
        self._hurried, self._in_time = False, 0
        self._deadline = self._next_tick()

    def _next_tick(self) -> float:
        """Return when the next step may begin, by the machine's clock, s."""
        since = time.monotonic() - self._first
        return self._first + math.ceil(since / self._seconds) * self._seconds
