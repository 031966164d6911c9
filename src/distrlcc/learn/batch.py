"""Training samples side by side, as sequences; a lone sample is a sequence of length 1.

Sequences lie in rows of N, one per environment: sequence ``row * N + environment``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distrlcc.errors import ConfigError
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec


@dataclass(slots=True)
class Batch:
    """``B`` sequences of ``L`` steps."""

    obs: Tensor  # float32 [L, B, D], normalised or raw as its maker says
    actions: Tensor  # int64 [L, B] or float32 [L, B, A]: taken, or the oracle's
    columns: Tensor  # float32 [K, L, B]: whatever else a loss needs per step
    starts: Tensor  # bool [L, B]
    states: Tensor  # float32 [2, B, H]: before the first step
    valid: Tensor | None
    """bool [L, B], False where a sequence was padded or no agent ran; None if nowhere."""

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

    def masked(self, values: Tensor) -> Tensor:
        """Return values ``[L, B]`` with 0 where a step does not count, so that none overflows."""
        return values if self.valid is None else values.where(self.valid, 0.0)

    def used(self, order: Tensor) -> Tensor:
        """Return those of sequences ``[B']`` that have a step which counts."""
        if self.valid is None:
            return order
        return order[self.valid.any(0).to(order.device)[order]]

    def take(self, order: Tensor) -> Batch:
        """Return a copy with sequences in the given order ``[B']``, in one pass over memory."""
        return Batch(
            self.obs.index_select(1, order),
            self.actions.index_select(1, order),
            self.columns.index_select(2, order),
            self.starts.index_select(1, order),
            self.states.index_select(1, order),
            None if self.valid is None else self.valid.index_select(1, order),
        )

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; itself if it is there."""
        return Batch(
            self.obs.to(device),
            self.actions.to(device),
            self.columns.to(device),
            self.starts.to(device),
            self.states.to(device),
            None if self.valid is None else self.valid.to(device),
        )


def check_minibatch(spec: PolicySpec, minibatch_size: int, sequence_length: int) -> None:
    """Check that a minibatch holds a whole sequence, or some would be empty on every rank.

    Raises:
        ConfigError: If it does not.
    """
    if spec.state_size and minibatch_size < sequence_length:
        raise ConfigError(
            f"minibatch_size is {minibatch_size}: expected {sequence_length} or more, one sequence "
            "of the LSTM (sequence_length)"
        )


def sequences(rows: Tensor, length: int) -> Tensor:
    """Cut rows ``[T, N, ...]`` into sequences ``[length, S · N, ...]``, the last padded with zeros.

    With length 1 the result is a view.
    """
    steps, count, *rest = rows.shape
    missing = -steps % length
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, count, *rest)])
    segments = rows.unflatten(0, (-1, length))
    swapped: Tensor = segments.transpose(0, 1)
    return swapped.flatten(1, 2)


def batch_of(rollout: Rollout, obs: Tensor, actions: Tensor, columns: Tensor) -> Batch:
    """Arrange a rollout's rows for training.

    Args:
        rollout: Gives episode starts, recurrent states and the sequences' length.
        obs: ``[steps, N, D]``.
        actions: ``[steps, N]`` or ``[steps, N, A]``.
        columns: ``[K, steps, N]``.
    """
    length, steps, count = rollout.sequence_length, rollout.steps, rollout.count
    if rollout.states.shape[-1]:
        states = torch.from_numpy(rollout.states)[: -(-steps // length)]
    else:
        states = torch.zeros(steps, 2, count, 0)
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
