"""Imitation: losses by hand, moments, learning on toys, the same result twice; sequences."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.data.manifest import Spaces
from distrlcc.data.reader import StoredData
from distrlcc.learn.config import ImitationConfig
from distrlcc.learn.imitation import Cloning, Epoch, SequenceDataset, share_of_minibatches
from distrlcc.learn.learner import InterruptedUpdateError
from distrlcc.policy.numpy_policy import NumpyNetwork
from distrlcc.policy.spec import PolicySpec
from tests.learn.toys import EPISODES, STEPS, Task, make_spec, same_weights, say, store, write_data

CONFIG = ImitationConfig(lr=5e-3, minibatch_size=128, sequence_length=8, burn_in=8)


SPEC = make_spec()
MEMORY = make_spec("memory", kind="lstm", hidden=(8,))


@pytest.fixture
def matches(tmp_path: Path) -> StoredData:
    return write_data(tmp_path, "match", SPEC)


@pytest.fixture
def memories(tmp_path: Path) -> StoredData:
    return write_data(tmp_path, "memory", MEMORY)


def _epoch(
    data: StoredData,
    spec: PolicySpec,
    number: int = 0,
    config: ImitationConfig = CONFIG,
    stop: Callable[[int], bool] = lambda steps: False,
) -> Epoch:
    """Return an epoch whose last eight episodes validate."""
    episodes, sequence = np.arange(EPISODES - 8), config.sequence_length
    burn_in = config.burn_in if spec.state_size else 0
    training = SequenceDataset(data, episodes, sequence, burn_in)
    length = STEPS if spec.state_size else sequence
    validation = SequenceDataset(data, np.arange(EPISODES - 8, EPISODES), length)
    parts = share_of_minibatches(training, config.minibatch_size // sequence, epoch=number)
    others = share_of_minibatches(validation, config.minibatch_size // length)
    return Epoch(number, training, parts, validation, others, episodes, stop)


def _fit(
    data: StoredData, spec: PolicySpec, epochs: int = 12, config: ImitationConfig = CONFIG
) -> tuple[Cloning, list[dict[str, float]]]:
    learner = Cloning(config, spec)
    return learner, [learner.update(_epoch(data, spec, n, config)) for n in range(epochs)]


@pytest.mark.parametrize(
    ("task", "changes", "key", "bound"),
    [
        ("match", {}, "validation_accuracy", 0.93),
        ("track", {}, "validation_loss", 0.02),
        ("memory", {"kind": "lstm", "hidden": (16,)}, "validation_accuracy", 0.97),
    ],
)
def test_learns(tmp_path: Path, task: Task, changes: Any, key: str, bound: float) -> None:
    spec = make_spec(task, **changes)
    stored = write_data(tmp_path, task, spec)
    _, rows = _fit(stored, spec, 25)
    assert (rows[-1][key] < bound) if "loss" in key else (rows[-1][key] > bound)
    assert ("validation_accuracy" in rows[-1]) == (task != "track")
    _, again = _fit(stored, spec, 3)
    assert again == rows[:3]


def test_an_lstm_is_validated_as_it_acts(memories: StoredData) -> None:
    """The validation's accuracy is that of the NumPy network, one step after another."""
    learner, rows = _fit(memories, MEMORY, 3)
    network = NumpyNetwork(MEMORY, learner.weights().arrays)
    hits = []
    for index in range(EPISODES - 8, EPISODES):
        steps, state = memories.episode(index), network.initial_state(1)
        for t in range(STEPS):
            head, _, state = network.step(steps.observations[t : t + 1], state)
            hits.append(head.argmax() == steps.expert_actions[t])
    assert np.mean(hits) == pytest.approx(rows[-1]["validation_accuracy"], abs=0.01)


def test_loss_by_hand(matches: StoredData) -> None:
    """A network that always says 0.2, 0.3 and 0.5 is measured before it learns."""
    learner, epoch = Cloning(CONFIG, SPEC), _epoch(matches, SPEC)
    say(learner, 0.2, 0.3, 0.5)
    metrics = learner.update(dataclasses.replace(epoch, parts=[np.array([0])]))
    actions = matches.episode(0).expert_actions[: CONFIG.sequence_length]
    expected = -np.log(np.array([0.2, 0.3, 0.5])[actions]).mean()
    assert metrics["imitation_loss"] == pytest.approx(expected)
    assert metrics["imitation_accuracy"] == pytest.approx((actions == 2).mean())


def test_moments_are_those_of_the_training_episodes(matches: StoredData) -> None:
    episodes = np.array([0, 3, 4, 17])
    epoch = dataclasses.replace(_epoch(matches, SPEC), own_episodes=episodes)
    learner = Cloning(CONFIG, SPEC)
    learner.update(epoch)
    normalizer = learner.normalizer
    seen = np.concatenate([matches.episode(e).observations for e in episodes]).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, seen.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.std, seen.std(axis=0), rtol=1e-9)
    assert normalizer.count == 4 * STEPS
    plain = Cloning(dataclasses.replace(CONFIG, normalize_observations=False), SPEC)
    with pytest.warns(match="observations beyond 10 count as 10"):
        plain.update(epoch)
    assert plain.normalizer.count == 0


def test_a_state_goes_on_bit_for_bit(memories: StoredData) -> None:
    learner, _ = _fit(memories, MEMORY, 2)
    again = Cloning(CONFIG, MEMORY)
    again.load_state_dict(copy.deepcopy(learner.state_dict()))
    epoch = _epoch(memories, MEMORY, 2)
    assert learner.update(epoch) == again.update(epoch)
    same_weights(learner.weights(), again.weights())


def test_an_epoch_that_is_broken_off_can_be_undone(matches: StoredData) -> None:
    asked = list[int]()
    learner = Cloning(dataclasses.replace(CONFIG, minibatch_size=8), SPEC)
    before = learner.state_dict()

    def stop(steps: int) -> bool:
        asked.append(steps)
        return len(asked) > 1

    with pytest.raises(InterruptedUpdateError):
        learner.update(_epoch(matches, SPEC, 0, learner.config, stop))
    assert asked[0] == 0 < asked[1]
    assert not torch.equal(before["model"]["parameters"], learner.optimizer.flat)
    learner.undo_update(before)
    assert torch.equal(before["model"]["parameters"], learner.optimizer.flat)
    assert learner.normalizer.count == learner.version == 0


LENGTHS = (5, 8, 1, 4, 11, 2)


@pytest.fixture
def uneven(tmp_path: Path) -> StoredData:
    """Observation ``(episode, step)``, action: the step; two or three episodes in a shard."""
    steps = [np.arange(length) for length in LENGTHS]
    episodes = [(np.stack([0 * own + n, own], axis=1), own) for n, own in enumerate(steps)]
    return store(tmp_path / "d", Spaces("toy", 2, "toy", "discrete", 16), episodes, 14)


@pytest.mark.parametrize("length", [1, 3, 4, 16])
@pytest.mark.parametrize("burn_in", [0, 2])
def test_each_step_counts_once(uneven: StoredData, length: int, burn_in: int) -> None:
    episodes = np.array([0, 1, 3, 4, 5])
    dataset = SequenceDataset(uneven, episodes, length, burn_in)
    assert len(dataset) == sum(-(-LENGTHS[e] // length) for e in episodes)
    order = np.random.default_rng(0).permutation(len(dataset))
    seen = []
    for part in np.array_split(order, 3):
        batch: Any = dataset.__getitems__(part)
        assert batch.obs.shape == (burn_in + length, len(part), 2)
        assert int(batch.valid.sum()) == dataset.counts(part).sum()
        np.testing.assert_array_equal(batch.starts, (batch.obs[..., 1] == 0) & batch.starts)
        np.testing.assert_array_equal(batch.actions[batch.valid], batch.obs[..., 1][batch.valid])
        seen += batch.obs[batch.valid].tolist()
    assert sorted(seen) == [[e, t] for e in episodes for t in range(LENGTHS[e])]
    assert dataset.steps == len(seen)


def test_burn_in_is_the_past(uneven: StoredData) -> None:
    dataset = SequenceDataset(uneven, np.array([1, 4]), 3, 2)
    batch: Any = dataset.__getitems__([0, 1, len(dataset) - 1])
    # Nothing goes before an episode, since the state is zero at its start; then steps 3 to 5.
    assert batch.starts.T.tolist() == [[False, False, True, False, False], [False] * 5, [False] * 5]
    assert batch.obs[:, 1, 1].tolist() == [1, 2, 3, 4, 5]
    assert batch.valid[:, :2].T.tolist() == [[False, False, True, True, True]] * 2
    # Steps 9 and 10 of episode 4.
    assert batch.obs[2:4, 2].tolist() == [[4, 9], [4, 10]]
    assert batch.valid[:, 2].tolist() == [False, False, True, True, False]


def test_a_minibatch_may_be_empty(uneven: StoredData) -> None:
    dataset = SequenceDataset(uneven, np.arange(6), 4)
    batch = dataset.__getitems__(np.zeros(0, np.int64))
    assert batch.obs.shape == (4, 0, 2)
    assert len(SequenceDataset(uneven, np.zeros(0, np.int64), 4)) == 0
