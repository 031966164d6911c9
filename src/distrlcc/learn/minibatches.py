"""Rollouts as training batches, and their division into minibatches.

Samples lie side by side as sequences; a lone sample is a sequence of length 1. Sequences lie in
rows of N, one per environment: sequence ``row * N + environment``.

Minibatches are the same on one rank or on many: a unit is one row of the environments whose global
index is ``block`` modulo ``blocks``. Units are shuffled and dealt in equal numbers, so minibatches
differ in size by little. A rank whose rollout was cut short leaves out the rows that it lacks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from distrlcc import seeding
from distrlcc.learn.rollout import Rollout


@dataclass(slots=True)
class Batch:
    """``B`` sequences of ``L`` steps."""

    obs: Tensor  # float32 [L, B, D], normalised or raw as its maker says
    actions: Tensor  # int64 [L, B] or float32 [L, B, A]: taken, or the oracle's
    columns: Tensor  # float32 [K, L, B]: whatever else a loss needs per step
    starts: Tensor  # bool [L, B]
    states: Tensor  # float32 [P, B, H]: before the first step
    valid: Tensor | None  # bool [L, B], False: padded, or no agent ran; None if nowhere

    @property
    def count(self) -> int:
        """Sequences ``B``."""
        return self.starts.shape[1]

    @property
    def samples(self) -> int:
        """Steps that count."""
        return self.starts.numel() if self.valid is None else int(self.valid.sum())

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values ``[L, B]`` over the steps that count."""
        return (values if self.valid is None else values[self.valid]).mean()

    def used(self, order: Tensor) -> Tensor:
        """Return those of sequences ``[B']`` that have a step which counts."""
        return order if self.valid is None else order[self.valid.any(0).to(order.device)[order]]

    def take(self, order: Tensor) -> "Batch":
        """Return a copy with sequences in the given order ``[B']``, in one pass over memory."""
        return self._map(lambda array, axis: array.index_select(axis, order))

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; itself if it is there."""
        return self._map(lambda array, _: array.to(device))

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> "Batch":
        """Return a batch of changed arrays; ``change`` is told the axis of sequences."""
        return Batch(
            change(self.obs, 1),
            change(self.actions, 1),
            change(self.columns, 2),
            change(self.starts, 1),
            change(self.states, 1),
            None if self.valid is None else change(self.valid, 1),
        )


def sequences(rows: Tensor, length: int) -> Tensor:
    """Cut rows ``[T, N, ...]`` into sequences ``[length, S · N, ...]``, the last zero-padded."""
    steps, count, *rest = rows.shape
    missing = -steps % length
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, count, *rest)])
    segments = rows.unflatten(0, (-1, length))
    swapped: Tensor = segments.transpose(0, 1)
    return swapped.flatten(1, 2)


def batch_of(rollout: Rollout, obs: Tensor, actions: Tensor, columns: Tensor) -> Batch:
    """Arrange a rollout's rows for training.

    ``obs`` is ``[steps, N, D]``, ``actions`` ``[steps, N]`` or ``[steps, N, A]``, ``columns`` ``[K,
    steps, N]``; the rollout gives episode starts and recurrent states.
    """
    length, steps, count = rollout.sequence_length, rollout.steps, rollout.count
    if rollout.states.shape[-1]:
        states = torch.from_numpy(rollout.states)[: -(-steps // length)]
    else:
        states = torch.zeros(steps, rollout.states.shape[1], count, 0)
    idle = rollout.idle
    valid = None
    if idle is not None:
        valid = sequences(torch.from_numpy(~idle), length)
    elif steps % length:
        valid = sequences(torch.ones(steps, count, dtype=torch.bool), length)
    return Batch(
        sequences(obs, length),
        sequences(actions, length),
        sequences(columns.movedim(0, -1), length).movedim(-1, 0).contiguous(),
        sequences(torch.from_numpy(rollout.starts[:steps]), length),
        states.transpose(0, 1).flatten(1, 2),
        valid,
    )


_UNITS_PER_PART = 16  # units in a minibatch, at least, where there are environments enough


@dataclass(frozen=True, slots=True)
class MinibatchPlan:
    """How rows are dealt to minibatches; all except ``first`` is the same on all ranks."""

    parts: int  # minibatches
    rows: int  # rows of a rank that was not cut short
    blocks: int  # groups that each row's environments are divided into
    first: int  # global index of this rank's first environment

    def minibatches(self, rows: int, count: int, key: np.uint64) -> Iterator[Tensor]:
        """Yield sequences of minibatches, int64 ``[B]``, perhaps empty; ranks share the key."""
        units = self.rows * self.blocks
        order = np.argsort(seeding.uniform(key, np.arange(units)), kind="stable")
        environments = np.arange(count)
        block_of = (environments + self.first) % self.blocks
        members = [environments[block_of == block] for block in range(self.blocks)]
        bounds = [units * part // self.parts for part in range(self.parts + 1)]
        for i, j in pairwise(bounds):
            chosen = [
                unit // self.blocks * count + members[unit % self.blocks]
                for unit in order[i:j].tolist()
                if unit // self.blocks < rows
            ]
            yield torch.from_numpy(np.concatenate(chosen) if chosen else environments[:0])


def plan_minibatches(
    samples: float, minibatch_size: int, rows: int, envs: float, first: int
) -> MinibatchPlan:
    """Plan minibatches of about ``minibatch_size`` of all ranks' samples.

    ``rows`` of sequences has a rank that was not cut short; ``envs`` is all ranks' number,
    ``first`` the global index of this rank's first environment.
    """
    rows = max(rows, 1)
    parts = max(1, -(-int(samples) // minibatch_size))
    blocks = max(1, min(int(envs), -(-_UNITS_PER_PART * parts // rows)))
    return MinibatchPlan(min(parts, rows * blocks), rows, blocks, first)
