"""What a collection saw: sums and counts, so that ranks' statistics add up."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class CollectStats:
    """Sums over a collection; add two with :meth:`merge`, over ranks by summing the vectors."""

    steps: float = 0.0
    """Environment steps."""
    reward: float = 0.0
    """Sum of rewards."""
    entropy: float = 0.0
    """Sum over steps of the policy's entropy, nats."""
    minimum_window: float = 0.0
    """Steps on which the window stood at its minimum."""
    episodes: float = 0.0
    """Episodes that ended."""
    silent_episodes: float = 0.0
    """Of these, episodes whose window stood at its minimum nearly throughout."""
    episode_return: float = 0.0
    """Sum of ended episodes' returns; likewise the next three."""
    utilisation: float = 0.0
    queueing_delay: float = 0.0
    loss: float = 0.0
    environment_seconds: float = 0.0
    """Time in ``env.step``."""
    inference_seconds: float = 0.0
    """Time in choosing actions."""
    timed_steps: float = 0.0
    """Environment steps in real time."""
    late_steps: float = 0.0
    """Of these, those that were late."""

    def merge(self, other: CollectStats) -> None:
        """Add another collection's sums."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def to_vector(self) -> NDArray[np.float64]:
        """Return the sums as one float64 vector."""
        return np.array([getattr(self, f.name) for f in fields(self)])

    @classmethod
    def from_vector(cls, vector: NDArray[np.float64]) -> CollectStats:
        """Build statistics from :meth:`to_vector`'s vector."""
        return cls(*vector.tolist())

    def metrics(self) -> dict[str, float]:
        """Return means; those of episodes only if one ended."""
        steps, episodes = max(self.steps, 1.0), self.episodes
        means = {
            "reward": self.reward / steps,
            "policy_entropy": self.entropy / steps,
            "minimum_window_share": self.minimum_window / steps,
            "episodes": episodes,
        }
        if self.timed_steps:
            means["late_steps"] = self.late_steps / self.timed_steps
        if episodes:
            means |= {
                "episode_return": self.episode_return / episodes,
                "utilisation": self.utilisation / episodes,
                "queueing_delay": self.queueing_delay / episodes,
                "loss": self.loss / episodes,
                "silent_episode_share": self.silent_episodes / episodes,
            }
        return means
