"""A group whose members train one module on a data set, with what torch offers for that (DDP)."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import Dataset, DistributedSampler

from distrlcc.errors import GroupError
from distrlcc.parallel.process_group import ProcessGroup


class DataParallelGroup(ProcessGroup):
    """A member of such a group; also the `distrlcc.learn.data_parallel.DataParallel` of its part.

    Give it a place that is not elastic: whoever is gone ends such a training.
    """

    def wait(self) -> None:
        """Wait for all members, however long one of them scores or reads.

        Raises:
            GroupError: One is gone, or the master is out of reach.
        """
        self.meet(0, ready=False)

    def explain(self, error: Exception) -> Exception:
        """Return why an exchange failed: the members that are gone, or the error itself."""
        try:
            self.wait()
        except GroupError as gone:
            return gone
        return error

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module with its gradients averaged over members (DDP)."""
        if self.size == 1:
            return module
        devices = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=devices)

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool, seed: int
    ) -> DistributedSampler[Any]:
        """Return the sampler of this member's share of a data set."""
        return DistributedSampler(
            dataset, num_replicas=self.size, rank=self.rank, shuffle=shuffle, seed=seed
        )
