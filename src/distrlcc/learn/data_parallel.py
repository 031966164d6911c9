"""The seam between supervised training and other ranks; one process needs none of it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset, DistributedSampler


class DataParallel(Protocol):
    """A rank among ranks that train one module: all call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """This process's number, from 0; 0 logs, scores and saves."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module with its gradients averaged over ranks in each backward pass."""
        ...

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool, seed: int
    ) -> DistributedSampler[Any]:
        """Return the sampler of this rank's share of a data set."""
        ...

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ranks' sum of a float64 array of the same shape everywhere."""
        ...

    def wait(self) -> None:
        """Wait for all ranks, however long one of them scores or reads."""
        ...


class LocalGroup:
    """The only rank there is."""

    rank = 0
    size = 1

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module as it is."""
        return module

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool, seed: int
    ) -> DistributedSampler[Any]:
        """Return the sampler of all samples, in the order in which ranks would share them."""
        return DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=shuffle, seed=seed)

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values as they are."""
        return values

    def wait(self) -> None:
        """There is nobody to wait for."""
