"""The account of all segments: each is used once, or refused for a reason; none is lost unseen."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import Any

from distrlcc.actors.segment import Segment
from distrlcc.learn.rollout import Rollout

DUPLICATE = "seen before"
STALE = "too old a policy"
UNFIT = "of another shape"
ENDED = "left over at the end"
GONE = "of a worker that was given up"


class Ledger:
    """Counts segments; at any time ``received == used + sum(refused) + waiting``."""

    def __init__(self, max_lag: int, like: Rollout) -> None:
        """Begin an account; whoever changes it beside others holds ``lock``.

        Args:
            max_lag: Updates that a segment's policy may be behind the learner when it is used.
            like: A rollout of the shape that fits.
        """
        self.lock = threading.RLock()
        self._max_lag = max_lag
        self._shape = (like.obs.shape, like.states.shape)
        self._next: Counter[tuple[int, Hashable]] = Counter()
        self.received = self.used = self.lost = 0
        """``lost``: numbers that were passed over by a worker's later segments."""
        self.refused: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Segments that were received and neither used nor refused yet."""
        return self.received - self.used - self.refused.total()

    def receive(self, segment: Segment, life: Hashable) -> bool:
        """Enter a segment; return whether it may be kept.

        Args:
            segment: As it came.
            life: Whatever tells a worker from one that was started in its place, which counts
                from 0 again.
        """
        self.received += 1
        expected = self._next[segment.worker, life]
        if segment.number < expected:
            self.refused[DUPLICATE] += 1
            return False
        self.lost += segment.number - expected
        self._next[segment.worker, life] = segment.number + 1
        rollout = segment.rollout
        if (rollout.obs.shape, rollout.states.shape) != self._shape:
            self.refused[UNFIT] += 1
            return False
        return True

    def use(self, segment: Segment, version: int) -> bool:
        """Count a segment as used by the update of a version, or refuse it."""
        if version - segment.version > self._max_lag:
            self.refused[STALE] += 1
            return False
        self.used += 1
        return True

    def refuse(self, segments: int, reason: str) -> None:
        """Enter segments that are of no use."""
        self.received += segments
        self.refused[reason] += segments

    def put_back(self, segments: int) -> None:
        """Count segments that were used as waiting again."""
        self.used -= segments

    def end(self) -> None:
        """Refuse what still waits."""
        self.refused[ENDED] += self.waiting

    def __str__(self) -> str:
        refused = ", ".join(f"{n} {reason}" for reason, n in sorted(self.refused.items()) if n)
        return f"segments: {self.used} used, {self.refused.total()} refused" + (
            f" ({refused})" if refused else ""
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, for a checkpoint; what waits then is counted as left over."""
        with self.lock:
            return self._counts()

    def _counts(self) -> dict[str, Any]:
        waiting = self.waiting
        refused = dict(self.refused)
        if waiting:
            refused[ENDED] = refused.get(ENDED, 0) + waiting
        return {
            "received": self.received,
            "used": self.used,
            "lost": self.lost,
            "refused": refused,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.received, self.used = int(state["received"]), int(state["used"])
        self.lost = int(state["lost"])
        self.refused = Counter({reason: int(n) for reason, n in state["refused"].items()})
