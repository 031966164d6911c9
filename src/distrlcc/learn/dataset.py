"""DAgger's data set: labelled sequences aggregated over rounds, in bounded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distrlcc.learn.batch import Batch
from distrlcc.policy.spec import PolicySpec


class Dataset:
    """A ring of sequences; when it is full the oldest make room."""

    def __init__(self, spec: PolicySpec, capacity: int, length: int) -> None:
        """Allocate the ring.

        Args:
            spec: The policy's spec.
            capacity: Samples to hold at most.
            length: ``L``, steps in a sequence.
        """
        self._capacity = max(1, capacity // length)  # sequences
        self._written = 0  # sequences, since the beginning
        shape = (length, self._capacity)
        discrete = spec.action_kind == "discrete"
        self._ring = Batch(
            obs=torch.zeros(*shape, spec.observation_size),
            actions=torch.zeros(shape, dtype=torch.int64)
            if discrete
            else torch.zeros(*shape, spec.action_size),
            columns=torch.zeros(0, *shape),
            starts=torch.zeros(shape, dtype=torch.bool),
            states=torch.zeros(2, self._capacity, spec.state_size),
            valid=torch.zeros(shape, dtype=torch.bool),
        )

    def __len__(self) -> int:
        """Return the number of sequences held."""
        return min(self._written, self._capacity)

    def add(self, batch: Batch) -> None:
        """Copy sequences in; of more than fit, the last ones stay."""
        order = torch.arange(batch.count)[-self._capacity :]
        kept = batch.take(order)
        valid = kept.valid
        if valid is None:
            valid = torch.ones_like(kept.starts)
        places = (order + self._written) % self._capacity
        ring = self._ring
        assert ring.valid is not None
        for whole, new in (
            (ring.obs, kept.obs),
            (ring.actions, kept.actions),
            (ring.starts, kept.starts),
            (ring.states, kept.states),
            (ring.valid, valid),
        ):
            whole.index_copy_(1, places, new)
        self._written += batch.count

    def shuffled(self, generator: torch.Generator) -> Batch:
        """Return all sequences in a random order, copied."""
        return self._ring.take(torch.randperm(len(self), generator=generator))

    def state_dict(self) -> dict[str, Any]:
        """Return the sequences held and the counter."""
        held = self._arrays()
        return {"written": self._written} | {k: v[:, : len(self)].clone() for k, v in held.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        self._written = int(state["written"])
        for name, whole in self._arrays().items():
            whole[:, : len(self)] = torch.as_tensor(state[name])

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
