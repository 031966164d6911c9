"""Data that pass between learners, actors and other ranks: `Weights`, and `Reducer`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Spread:
    """How far ranks' gradients of one minibatch are apart."""

    square: float  # weighted mean of the squares of their norms
    ranks: float  # ranks with samples
    samples: float  # samples of all ranks


class Reducer(Protocol):
    """Collective operations: every rank calls the same ones in the same order."""

    @property
    def size(self) -> int:
        """Ranks that learn together."""
        return 1

    @property
    def sync_every(self) -> int:
        """Steps that each rank takes by itself between two averages; 1: each is of all ranks."""
        return 1

    def mean_gradient(self, gradient: Tensor, weight: float) -> Spread | None:
        """Replace the flat gradient ``[P]`` by the mean over ranks' samples; return its spread."""

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ranks' sum of a small float64 array of the same shape everywhere."""


class LocalReducer(Reducer):
    """The reducer of one process, which may be told to stop before each minibatch."""

    interrupted: Callable[[], bool] = staticmethod(lambda: False)

    def mean_gradient(self, gradient: Tensor, weight: float) -> Spread | None:
        """Leave the gradient as it is, unless the user wants to stop."""
        if self.interrupted():
            raise InterruptedUpdateError
        return None

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values as they are; see `Reducer`."""
        return checked(values)


class InterruptedUpdateError(Exception):
    """The user wants to stop in the middle of an update, of which nothing shall remain."""


class NotFiniteError(Exception):
    """The data to learn from are not finite: nothing of the update remains."""


def checked(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums as they are, or raise NotFiniteError where one is not finite."""
    if not np.isfinite(sums).all():
        raise NotFiniteError("a sum of statistics is not finite")
    return sums


@dataclass(frozen=True, slots=True)
class Weights:
    """A policy to act with; it crosses processes and machines."""

    version: int  # number of updates behind it
    arrays: dict[str, NDArray[np.float32]]  # of a policy file: `policy.spec.expected_shapes`
    expert_acts: bool = False  # whether the expert acts instead, as in DAgger's first rounds
