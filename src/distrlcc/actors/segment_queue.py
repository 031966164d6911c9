"""The segments that wait for an update, and the count of those that were used or refused."""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from distrlcc.actors.actor import Segment
from distrlcc.learn.collect import MOST_LATE_LEARNED

STALE = "too old a policy"
ENDED = "left over at the end"
GONE = "of a worker that was dropped"
NOT_FINITE = "with numbers that are not finite"
LATE = "with too many late steps"


def _flaw(segment: Segment) -> str:
    """Return why nothing can be learned from a segment, if so."""
    arrays = segment.rollout.arrays().values()
    if segment.stats.flaw or not all(np.isfinite(array).all() for array in arrays):
        return NOT_FINITE
    return LATE if segment.stats.late_share > MOST_LATE_LEARNED else ""


class SegmentQueue:
    """First in, first out: the pool's thread adds segments, the trainer's takes each once."""

    def __init__(self, max_lag: int) -> None:
        """Begin empty; a segment's policy may be ``max_lag`` updates behind the learner."""
        self.lock = threading.RLock()
        self.used = 0
        self.refused: Counter[str] = Counter()
        self._max_lag = max_lag
        self._waiting: deque[Segment] = deque()

    def __len__(self) -> int:
        """Return the number of segments that wait."""
        return len(self._waiting)

    @property
    def received(self) -> int:
        """All segments that came from workers."""
        with self.lock:
            return self.used + self.refused.total() + len(self)

    def add(self, segments: Sequence[Segment]) -> list[tuple[Segment, str]]:
        """Let segments wait; return those that are refused, and why."""
        judged = [(segment, _flaw(segment)) for segment in segments]
        with self.lock:
            self._waiting.extend(segment for segment, flaw in judged if not flaw)
            self.refused.update(flaw for _, flaw in judged if flaw)
        return [(segment, flaw) for segment, flaw in judged if flaw]

    def take(self, count: int, version: int) -> list[Segment]:
        """Return the oldest segments for a version, or none yet; refuse ones beyond `max_lag`."""
        with self.lock:
            fresh = [s for s in self._waiting if version - s.rollout.version <= self._max_lag]
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
        """Count the segments of an update that was broken off as left over."""
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
            return {"used": self.used, "refused": dict(refused)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.used = int(state["used"])
        self.refused = Counter({reason: int(n) for reason, n in state["refused"].items()})
