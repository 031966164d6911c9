"""The seam between a learner and other ranks; one process needs none of it."""

from __future__ import annotations

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
