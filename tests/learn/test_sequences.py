"""Sequences of a stored data set: each step once, in its place, with its past."""

from pathlib import Path

import numpy as np
import pytest

from distrlcc.data.manifest import Origin, Spaces
from distrlcc.data.reader import StoredData
from distrlcc.data.writer import DatasetWriter, Episode
from distrlcc.learn.imitation import SequenceDataset

LENGTHS = (5, 8, 1, 4, 11, 2)


@pytest.fixture
def data(tmp_path: Path) -> StoredData:
    """Observation ``(episode, step)``, action: the step; two or three episodes in a shard."""
    spaces = Spaces("toy", 2, "toy", "discrete", 16)
    origin = Origin("oracle", ("random",), "train", 0, 1, 0.0, "", {})
    with DatasetWriter(tmp_path / "d", spaces, origin, 14) as writer:
        for number, length in enumerate(LENGTHS):
            steps = np.arange(length)
            obs = np.stack([np.full(length, number), steps], axis=1).astype(np.float32)
            scores = dict.fromkeys(("return", "utilisation", "queueing_delay", "loss"), 0.0)
            outcomes = np.zeros((length, 3), np.float32)
            writer.add(Episode("", obs, steps, steps, 0 * obs[:, 0], outcomes, obs[0], scores))
        writer.finish()
    return StoredData(tmp_path / "d")


@pytest.mark.parametrize("length", [1, 3, 4, 16])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_each_step_counts_once(data: StoredData, length: int, burn_in: int) -> None:
    episodes = np.array([0, 1, 3, 4, 5])
    dataset = SequenceDataset(data, episodes, length, burn_in)
    assert len(dataset) == sum(-(-LENGTHS[e] // length) for e in episodes)
    order = np.random.default_rng(0).permutation(len(dataset))
    seen = []
    for part in np.array_split(order, 3):
        batch = dataset.__getitems__(part)
        assert batch.obs.shape == (burn_in + length, len(part), 2)
        assert int(batch.valid.sum()) == dataset.counts(part).sum()
        np.testing.assert_array_equal(batch.starts, (batch.obs[..., 1] == 0) & batch.starts)
        np.testing.assert_array_equal(batch.actions[batch.valid], batch.obs[..., 1][batch.valid])
        seen += batch.obs[batch.valid].tolist()
    assert sorted(seen) == [[e, t] for e in episodes for t in range(LENGTHS[e])]
    assert dataset.steps == len(seen)


def test_burn_in_is_the_past(data: StoredData) -> None:
    dataset = SequenceDataset(data, np.array([1, 4]), 3, 2)
    batch = dataset[1]  # steps 3 to 5 of episode 1
    assert batch.obs[:, 0, 1].tolist() == [1, 2, 3, 4, 5]
    assert batch.valid[:, 0].tolist() == [False, False, True, True, True]
    assert not batch.starts.any()
    first = dataset[0]  # nothing goes before an episode: the state is zero at its start
    assert first.starts[:, 0].tolist() == [False, False, True, False, False]
    assert first.valid[:, 0].tolist() == [False, False, True, True, True]
    last = dataset[len(dataset) - 1]  # steps 9 and 10 of episode 4
    assert last.obs[2:4, 0].tolist() == [[4, 9], [4, 10]]
    assert last.valid[:, 0].tolist() == [False, False, True, True, False]


def test_a_minibatch_may_be_empty(data: StoredData) -> None:
    dataset = SequenceDataset(data, np.arange(6), 4)
    batch = dataset.__getitems__(np.zeros(0, np.int64))
    assert batch.obs.shape == (4, 0, 2)
    assert len(SequenceDataset(data, np.zeros(0, np.int64), 4)) == 0
