"""Running mean and variance of observations, mergeable across processes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.types import copy_state, restore_state

CLIP = 10.0  # normalised observations are clipped to ±CLIP standard deviations

_EPSILON = 1e-8
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def normalize(obs: Float32, mean: Float32, std: Float32) -> Float32:
    """Return ``(obs - mean) / std`` clipped to ±CLIP; obs ``[..., D]``, mean and std ``[D]``."""
    scaled: Float32 = obs - mean
    scaled *= np.float32(1.0) / std
    np.minimum(scaled, np.float32(CLIP), out=scaled)
    np.maximum(scaled, np.float32(-CLIP), out=scaled)
    return scaled


class Normalizer:
    """Count, mean and sum of squared deviations of each observation feature, in float64.

    Merging is exact in any order: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
    Algorithm for Computing Sample Variances", 1979, equation 2.1.
    """

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean: Float64 = np.zeros(size)
        self.m2: Float64 = np.zeros(size)

    def update(self, obs: NDArray[np.floating[Any]]) -> None:
        """Take in observations ``[..., D]``."""
        rows = obs.reshape(-1, obs.shape[-1])
        if len(rows):
            mean = rows.mean(axis=0, dtype=np.float64)
            self.merge(float(len(rows)), mean, np.square(rows - mean).sum(axis=0))

    def merge(self, count: float, mean: Float64, m2: Float64) -> None:
        """Take in what another normaliser has seen."""
        if count == 0.0:
            return
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.m2 = self.m2 + m2 + delta * delta * (self.count * count / total)
        self.count = total

    @property
    def std(self) -> Float64:
        """Standard deviation ``[D]``; 1 before any data and where a feature never varied."""
        if self.count == 0.0:
            return np.ones_like(self.mean)
        std = np.sqrt(self.m2 / self.count)
        return np.where(std > np.sqrt(_EPSILON), std, 1.0)

    def arrays(self) -> tuple[Float32, Float32]:
        """Return mean and std as float32, the way :func:`normalize` takes them."""
        return self.mean.astype(np.float32), self.std.astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a float and arrays."""
        return copy_state(self, "count mean m2")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        restore_state(self, "count mean m2", state)
