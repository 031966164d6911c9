"""Rollouts: shapes, copies, joins, and their arrangement as sequences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.learn.minibatches import batch_of, sequences
from distrlcc.learn.rollout import Rollout, concatenate
from distrlcc.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]


def _filled(spec: PolicySpec, length: int, count: int, steps: int, base: int) -> Rollout:
    rollout = Rollout.allocate(spec, length, count, 4)
    rollout.steps, rollout.version = steps, base
    rollout.obs[..., 0] = base + 100 * np.arange(length)[:, None] + np.arange(count)
    rollout.states[:] = np.arange(len(rollout.states))[:, None, None, None]
    return rollout


@pytest.mark.parametrize("changes", [{}, {"kind": "lstm", "hidden": (8,)}])
def test_copy_keeps_what_was_written(make_spec: MakeSpec, changes: dict[str, Any]) -> None:
    rollout = _filled(make_spec(**changes), 10, 3, steps=6, base=1)
    copy = rollout.copy()
    rollout.obs[:] = -1
    assert copy.obs.shape == (6, 3, 4)
    assert copy.obs[5, 2, 0] == 503.0
    assert copy.states.shape == ((2, 2, 3, 8) if changes else (0, 2, 3, 0))
    assert (copy.samples, copy.version) == (18, 1)


def test_concatenate_joins_side_by_side(make_spec: MakeSpec) -> None:
    spec = make_spec(kind="lstm", hidden=(8,))
    joined = concatenate([_filled(spec, 10, 3, 6, 5), _filled(spec, 8, 2, 6, 4)])
    assert (joined.obs.shape, joined.states.shape) == ((6, 5, 4), (2, 2, 5, 8))
    assert joined.last_values.shape == (5,)
    assert joined.obs[1, :, 0].tolist() == [105, 106, 107, 104, 105]
    assert (joined.count, joined.version) == (5, 4)
    with pytest.raises(ValueError, match=r"\[5, 6\]"):
        concatenate([_filled(spec, 10, 3, 6, 0), _filled(spec, 10, 3, 5, 0)])


def test_sequences_by_hand() -> None:
    rows = torch.tensor([[1, 2], [3, 4], [5, 6]])  # T = 3, N = 2
    assert sequences(rows, 1).tolist() == [[1, 2, 3, 4, 5, 6]]
    assert sequences(rows, 2).tolist() == [[1, 2, 5, 6], [3, 4, 0, 0]]


def test_batch_pads_and_masks_a_cut_rollout(make_spec: MakeSpec) -> None:
    rollout = _filled(make_spec(kind="lstm", hidden=(8,)), 10, 3, steps=6, base=0)
    obs, actions = torch.from_numpy(rollout.obs[:6]), torch.from_numpy(rollout.actions[:6])
    columns = torch.stack([obs[..., 0], -obs[..., 0]])
    batch = batch_of(rollout, obs, actions, columns)
    assert (batch.count, batch.samples) == (6, 18)  # two sequences of each environment
    assert batch.valid is not None
    assert batch.valid.sum(0).tolist() == [4, 4, 4, 2, 2, 2]
    assert batch.states[0, :, 0].tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(batch.columns[0], batch.obs[..., 0])
    expected = rollout.obs[:6, :, 0].mean()
    assert batch.mean(batch.columns[0]).item() == pytest.approx(expected)

    shuffled = batch.take(torch.tensor([5, 0, 3, 1, 2, 4]))
    assert shuffled.obs[0, 0, 0] == 402.0
