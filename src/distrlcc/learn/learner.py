"""The seams around an algorithm: `Learner` to its driver, `Reducer` to other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


class Learner(Protocol):
    """Turns what was collected, as rollouts or epochs of a data set, into better weights."""

    def update(self, batch: Any) -> dict[str, float]:
        """Learn from one batch and return metrics.

        Raises:
            InterruptedUpdateError: It was broken off; follow with :meth:`undo_update`.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that a bit-identical resume needs: nested dicts of arrays and scalars."""
        ...

    def shared_state(self) -> dict[str, Any]:
        """Return the part of :meth:`state_dict` that is the same on all ranks."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state, or the shared part of it."""
        ...

    def undo_update(self, before: dict[str, Any]) -> None:
        """Leave no trace of a broken update; ``before`` is :meth:`shared_state` before it."""
        ...

    def weights(self) -> Weights:
        """Return a copy of the policy to act with."""
        ...

    def load_weights(self, weights: Weights) -> None:
        """Start from another learner's policy; the optimizer and counters stay."""
        ...
