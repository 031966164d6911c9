"""The segments that wait for an update, and the count of those that were used, refused or lost."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Hashable
from typing import Any

from distrlcc.actors.actor import Segment

DUPLICATE = "seen before"
STALE = "too old a policy"
ENDED = "left over at the end"
GONE = "of a worker that was dropped"


class SegmentQueue:
    """First in, first out; each segment is used once, or refused for a reason.

    The pool's thread adds segments and the trainer's takes them; both hold `lock` for more than one
    call.
    """

    def __init__(self, max_lag: int) -> None:
        """Begin empty.

        Args:
            max_lag: Updates that a segment's policy may be behind the learner when it is used.
        """
        self.lock = threading.RLock()
        self.used = self.lost = 0
        """``lost``: numbers that a worker's later segments passed over."""
        self.refused: Counter[str] = Counter()
        self._max_lag = max_lag
        self._next: Counter[Hashable] = Counter()
        self._waiting: deque[Segment] = deque()

    def __len__(self) -> int:
        """Return the number of segments that wait."""
        return len(self._waiting)

    @property
    def received(self) -> int:
        """All segments that came from workers."""
        return self.used + self.refused.total() + len(self)

    def add(self, segment: Segment, worker: Hashable) -> None:
        """Let a segment wait, except where it came before.

        Args:
            segment: As it came.
            worker: Distinguishes a worker from one that was started in its place, which numbers its
                segments from 0 again.
        """
        with self.lock:
            expected = self._next[worker]
            if segment.number < expected:
                self.refused[DUPLICATE] += 1
                return
            self.lost += segment.number - expected
            self._next[worker] = segment.number + 1
            self._waiting.append(segment)

    def take(self, count: int, version: int) -> list[Segment]:
        """Return so many segments for the update of a version, the oldest first, or none yet.

        What is older than `max_lag` allows is refused.
        """
        with self.lock:
            fresh = [s for s in self._waiting if version - s.version <= self._max_lag]
            self.refused[STALE] += len(self._waiting) - len(fresh)
            chosen = fresh[:count] if len(fresh) >= count else []
            self._waiting = deque(fresh[len(chosen) :])
            self.used += len(chosen)
            return chosen

    def refuse(self, count: int, reason: str) -> None:
        """Count segments that came too late to wait."""
        with self.lock:
            self.refused[reason] += count

    def undo(self, count: int) -> None:
        """Count segments as left over whose update was broken off at the end."""
        with self.lock:
            self.used -= count
            self.refused[ENDED] += count

    def end(self) -> None:
        """Refuse the segments that still wait."""
        with self.lock:
            self.refused[ENDED] += len(self)
            self._waiting.clear()

    def __str__(self) -> str:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(self.refused.items()) if n)
        refused = f"{self.refused.total()} refused" + (f" ({reasons})" if reasons else "")
        return f"segments: {self.used} used, {refused}"

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, for a checkpoint; segments that wait are counted as left over."""
        with self.lock:
            refused = self.refused + Counter({ENDED: len(self)})
            return {"used": self.used, "lost": self.lost, "refused": dict(refused)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.used, self.lost = int(state["used"]), int(state["lost"])
        self.refused = Counter({reason: int(n) for reason, n in state["refused"].items()})
