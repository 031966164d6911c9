"""What passes between learners, those who act and other ranks: `Weights`, and `Reducer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Reducer(Protocol):
    """Collective operations: every rank calls the same ones in the same order."""

    def mean_gradient(self, gradient: Tensor, weight: float) -> None:
        """Replace the flat gradient ``[P]`` by the ranks' weighted mean, in place.

        Args:
            gradient: This rank's mean gradient over its part of the minibatch.
            weight: Samples in this rank's part; if it is 0 on every rank the mean is 0.
        """
        ...

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ranks' sum of a small float64 array of the same shape everywhere."""
        ...


class LocalReducer:
    """The reducer of one process: does nothing."""

    def mean_gradient(self, gradient: Tensor, weight: float) -> None:
        """Leave the gradient as it is."""

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values as they are."""
        return values


class InterruptedUpdateError(Exception):
    """The user wants to stop in the middle of an update, of which nothing shall remain."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy to act with; it crosses processes and machines."""

    version: int
    """Number of updates behind it."""
    arrays: dict[str, NDArray[np.float32]]
    """As ``distrlcc.policy.spec.expected_shapes`` names them; what a policy file holds."""
    expert_acts: bool = False
    """Whether the expert acts instead, as in DAgger's first rounds."""
