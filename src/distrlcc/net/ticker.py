"""The clock of a sender's steps: absolute deadlines, and how late each was."""

from __future__ import annotations

from array import array

import numpy as np

LATE_NS = 1_000_000
"""A step that begins this much after its time is late, ns."""
MOST_LATE = 0.05
"""A larger share of late steps marks an episode."""


class Ticker:
    """Says when the next step is due; a step that is missed altogether is not made up for."""

    def __init__(self, *, now: int, step: int) -> None:
        """Start the first step, which lasts ``step`` ns."""
        self.due = now + step
        """When the present step ends, ns."""
        self.missed = 0
        """Steps that were skipped, as their time had passed."""
        self._lateness = array("q")

    def tick(self, *, now: int, step: int) -> None:
        """End the present step, and start the next one.

        Args:
            now: Time, at or after `due`.
            step: The next step's length, ns.
        """
        late = now - self.due
        self._lateness.append(late)
        skipped = late // step
        self.missed += skipped
        self.due += (skipped + 1) * step

    @property
    def count(self) -> int:
        """Steps that have ended."""
        return len(self._lateness)

    def late_share(self) -> float:
        """Return the share of steps that were late or missed."""
        late = sum(late > LATE_NS for late in self._lateness) + self.missed
        return late / max(self.count + self.missed, 1)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the steps' lateness, ms; 0 without steps."""
        return float(np.percentile(self._lateness, percent)) * 1e-6 if self._lateness else 0.0
