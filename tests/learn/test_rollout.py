"""Rollouts and minibatches: shapes, copies, joins, sequences, which rank gets which sample."""

from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.learn.minibatches import batch_of, plan_minibatches, sequences
from distrlcc.learn.rollout import Rollout, concatenate
from distrlcc.policy.spec import PolicySpec
from tests.learn.toys import make_spec


def _filled(spec: PolicySpec, length: int, count: int, steps: int, base: int) -> Rollout:
    rollout = Rollout.allocate(spec, length, count, 4)
    rollout.steps, rollout.version = steps, base
    rollout.obs[..., 0] = base + 100 * np.arange(length)[:, None] + np.arange(count)
    rollout.states[:] = np.arange(len(rollout.states))[:, None, None, None]
    return rollout


@pytest.mark.parametrize("changes", [{}, {"kind": "lstm", "hidden": (8,)}])
def test_copy_keeps_what_was_written(changes: dict[str, Any]) -> None:
    rollout = _filled(make_spec(**changes), 10, 3, steps=6, base=1)
    copy = rollout.copy()
    rollout.obs[:] = -1
    assert copy.obs.shape == (6, 3, 4)
    assert copy.obs[5, 2, 0] == 503.0
    assert copy.states.shape == ((2, 2, 3, 8) if changes else (0, 2, 3, 0))
    assert (copy.samples, copy.version) == (18, 1)


def test_concatenate_joins_side_by_side() -> None:
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


def test_batch_pads_and_masks_a_cut_rollout() -> None:
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


KEY = np.uint64(7)


def _samples(rows: int, first: int, count: int, total: int, size: int, have: int) -> list[set[int]]:
    """Return each minibatch as global sample numbers row * total + environment."""
    plan = plan_minibatches(rows * total, size, rows, total, first)
    parts = []
    for chosen in plan.minibatches(have, count, KEY):
        row, environment = np.divmod(chosen.numpy(), count)
        parts.append(set((row * total + environment + first).tolist()))
        assert len(parts[-1]) == len(chosen)
    return parts


@pytest.mark.parametrize(("rows", "size"), [(64, 100), (4, 32), (1, 7), (64, 10**6), (2, 1)])
def test_ranks_deal_what_one_process_deals(rows: int, size: int) -> None:
    alone = _samples(rows, 0, 12, 12, size, rows)
    ranks = [_samples(rows, first, count, 12, size, rows) for first, count in ((0, 5), (5, 7))]
    assert alone == [a | b for a, b in zip(*ranks, strict=True)]
    assert sorted(sample for part in alone for sample in part) == list(range(rows * 12))
    if size == 100:
        assert [len(part) for part in alone] == [96] * 8


def test_a_cut_rank_leaves_out_the_rows_that_it_lacks() -> None:
    whole = _samples(16, 0, 6, 12, 24, 16)
    cut = _samples(16, 0, 6, 12, 24, 5)
    assert cut == [{sample for sample in part if sample < 5 * 12} for part in whole]


def test_the_deal_depends_on_the_key() -> None:
    plan = plan_minibatches(640, 64, 64, 10, 0)
    first = [chosen.tolist() for chosen in plan.minibatches(64, 10, KEY)]
    assert first == [chosen.tolist() for chosen in plan.minibatches(64, 10, KEY)]
    assert first != [chosen.tolist() for chosen in plan.minibatches(64, 10, np.uint64(8))]
