"""Random actions in an expert's trajectories, so that they show how to come back from errors.

A policy that was shown only an expert's own states has never seen what its small errors lead to
(DART, https://arxiv.org/abs/1703.09327). So each stretch of `STRETCH` steps begins with one random
action, taken for a random number of steps: the window ends up far off, and the rest of the stretch
is the expert's way back. What the expert would have done is recorded at every step.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distrlcc.seeding import stream_key, uniform

STRETCH = 50
"""Steps from one disturbance to the next."""


class Disturbance:
    """Which random actions are taken, named by seed, environment, episode and step."""

    def __init__(self, share: float, space: gymnasium.Space[Any], count: int, seed: int) -> None:
        """Disturb a share of the steps of ``count`` environments with actions of a space."""
        self._share, self._space = share, space
        self._key, self._rows = stream_key(seed, "disturb"), np.arange(count)

    def act(self, actions: NDArray[Any], episode: int, step: int) -> NDArray[Any]:
        """Return the actions to take ``[N]``: the expert's, or random ones."""
        if self._share == 0.0:
            return actions
        phase = STRETCH * uniform(self._key, self._rows, episode, 0)
        stretch, age = np.divmod((step + phase).astype(np.int64), STRETCH)
        lengths = 2.0 * self._share * STRETCH * uniform(self._key, self._rows, episode, 1, stretch)
        draws = uniform(self._key, self._rows, episode, 2, stretch)
        if isinstance(self._space, gymnasium.spaces.Discrete):
            drawn: NDArray[Any] = (draws * int(self._space.n)).astype(actions.dtype)
        else:
            assert isinstance(self._space, gymnasium.spaces.Box)
            low, high = float(self._space.low.min()), float(self._space.high.max())
            drawn = (low + draws * (high - low)).astype(actions.dtype)
        return np.where(age < np.rint(lengths), drawn, actions)
