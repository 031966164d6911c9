"""What crosses from actor to trainer: segments of experience, and how the actor is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distrlcc.learn.collect import CollectStats
from distrlcc.learn.rollout import Rollout


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one worker's environments, all acted by one version of the policy."""

    worker: int
    number: int
    """Of this worker's segments, from 0 without a gap."""
    episodes: NDArray[np.int64]
    """Which of its episodes each environment was in at the first step, from 0, ``[N]``."""
    rollout: Rollout
    stats: CollectStats

    @property
    def version(self) -> int:
        """Version of the weights that acted."""
        return self.rollout.version


@dataclass(frozen=True)
class Report:
    """An actor's answer."""

    segments: list[Segment]
    link: str
    """Name of the link of the first environment."""
    version: int
    """Of the weights that act now; -1 before the first."""
    steps: int
    """Environment steps since the beginning."""
    still_seconds: float
    """Time since a step ended, while it was to step, s."""
    waited_seconds: float
    """Time it has waited because its segments were not taken, s."""
    last_episode: dict[str, float] = field(default_factory=dict)
    """Utilisation and queueing delay (in base RTTs) of the episodes that ended last."""
    paced_steps: int = 0
    """Steps that had a deadline, since the beginning."""
    late_steps: int = 0
    """Of these, those that ended more than a millisecond after it."""
    lateness: list[int] = field(default_factory=list)
    """The paced steps by `LATENESS_SECONDS`' bins."""
