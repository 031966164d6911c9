"""DAgger's data set: labelled sequences aggregated over rounds, in bounded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distrlcc.learn.minibatches import Batch
from distrlcc.policy.spec import PolicySpec


class Dataset:
    """A ring of rows, each of one sequence per environment; when full the oldest make room."""

    def __init__(self, spec: PolicySpec, capacity: int, count: int, length: int) -> None:
        """Allocate the ring.

        Args:
            spec: The policy's spec.
            capacity: Rows to hold at most.
            count: Environments, N.
            length: ``L``, steps in a sequence.
        """
        self.count, self._length, self._capacity = count, length, capacity
        self._written = 0  # rows, since the beginning
        self._replaced: tuple[int, Tensor, list[Tensor]] | None = None
        shape = (length, capacity * count)
        discrete = spec.action_kind == "discrete"
        self._ring = Batch(
            obs=torch.zeros(*shape, spec.observation_size),
            actions=torch.zeros(shape, dtype=torch.int64)
            if discrete
            else torch.zeros(*shape, spec.action_size),
            columns=torch.zeros(0, *shape),
            starts=torch.zeros(shape, dtype=torch.bool),
            states=torch.zeros(2, capacity * count, spec.state_size),
            valid=torch.zeros(shape, dtype=torch.bool),
        )

    @property
    def rows(self) -> int:
        """Rows held."""
        return min(self._written, self._capacity)

    @property
    def samples(self) -> int:
        """Samples held, with padding and steps without an agent, which are in no loss."""
        return self.rows * self.count * self._length

    def add(self, batch: Batch) -> None:
        """Copy whole rows of sequences in; of more than fit, the last ones stay."""
        new_rows = batch.count // self.count
        order = torch.arange(batch.count)[-self._capacity * self.count :]
        kept = batch.take(order)
        valid = kept.valid
        if valid is None:
            valid = torch.ones_like(kept.starts)
        places = (order + self._written * self.count) % (self._capacity * self.count)
        arrays = self._arrays()
        old = [whole.index_select(1, places) for whole in arrays.values()]
        self._replaced = (self._written, places, old)
        for whole, new in zip(
            arrays.values(), (kept.obs, kept.actions, kept.starts, kept.states, valid), strict=True
        ):
            whole.index_copy_(1, places, new)
        self._written += new_rows

    def take_back(self) -> None:
        """Undo the last :meth:`add`."""
        if self._replaced is not None:
            self._written, places, old = self._replaced
            for whole, before in zip(self._arrays().values(), old, strict=True):
                whole.index_copy_(1, places, before)
            self._replaced = None

    def used(self, order: Tensor) -> Tensor:
        """Return those of sequences ``[B']`` that have a step which counts."""
        return self._ring.used(order)

    def take(self, order: Tensor) -> Batch:
        """Return a copy of sequences ``[B']``."""
        return self._ring.take(order)

    def state_dict(self) -> dict[str, Any]:
        """Return the sequences held and the counter."""
        held = self.rows * self.count
        arrays = {k: v[:, :held].clone() for k, v in self._arrays().items()}
        sizes = {"written": self._written, "capacity": self._capacity, "count": self.count}
        return sizes | {"length": self._length} | arrays

    @classmethod
    def from_state(cls, spec: PolicySpec, state: dict[str, Any]) -> Dataset:
        """Build the data set that :meth:`state_dict` was taken of."""
        data = cls(spec, int(state["capacity"]), int(state["count"]), int(state["length"]))
        data._written = int(state["written"])
        for name, whole in data._arrays().items():
            whole[:, : data.rows * data.count] = torch.as_tensor(state[name])
        return data

    def _arrays(self) -> dict[str, Tensor]:
        ring = self._ring
        assert ring.valid is not None
        return {
            "obs": ring.obs,
            "actions": ring.actions,
            "starts": ring.starts,
            "states": ring.states,
            "valid": ring.valid,
        }
