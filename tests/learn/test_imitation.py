"""Imitation: losses by hand, moments, learning on toys, the same result twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.data.reader import StoredData
from distrlcc.errors import ConfigError, DatasetError
from distrlcc.learn.data_parallel import LocalGroup
from distrlcc.learn.imitation import Imitator
from distrlcc.learn.imitation_config import ImitationConfig
from distrlcc.learn.sequences import SequenceBatch, SequenceDataset
from distrlcc.policy.numpy_policy import NumpyNetwork
from distrlcc.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]
CONFIG = ImitationConfig(lr=5e-3, minibatch_size=128, sequence_length=8, burn_in=8)
EPISODES, STEPS = 40, 21
"""Of `write_data`."""
WriteData = Callable[..., StoredData]


def _fit(
    data: StoredData, spec: PolicySpec, epochs: int = 12, config: ImitationConfig = CONFIG
) -> tuple[Imitator, list[dict[str, float]]]:
    episodes = np.arange(EPISODES - 8)
    imitator = Imitator(config, spec, 0, LocalGroup())
    imitator.examine(data, episodes)
    burn_in = config.burn_in if spec.state_size else 0
    training = SequenceDataset(data, episodes, config.sequence_length, burn_in)
    length = STEPS if spec.state_size else config.sequence_length
    validation = SequenceDataset(data, np.arange(EPISODES - 8, EPISODES), length)
    rows = []
    for epoch in range(epochs):
        metrics = imitator.train(training, epoch, lambda steps: False)
        assert metrics is not None
        rows.append(metrics | imitator.validate(validation, length))
    return imitator, rows


@pytest.mark.parametrize(
    ("task", "changes", "key", "bound"),
    [
        ("match", {}, "validation_accuracy", 0.93),
        ("track", {}, "validation_loss", 0.02),
        ("memory", {"kind": "lstm", "hidden": (16,)}, "validation_accuracy", 0.97),
    ],
)
def test_learns(
    make_env: Any,
    make_spec: MakeSpec,
    tmp_path: Path,
    write_data: WriteData,
    task: str,
    changes: Any,
    key: str,
    bound: float,
) -> None:
    spec = make_spec(task, **changes)
    data = write_data(tmp_path / "d", make_env(EPISODES, task), spec, discrete=task != "track")
    _, rows = _fit(data, spec, 25)
    assert (rows[-1][key] < bound) if "loss" in key else (rows[-1][key] > bound)
    assert ("validation_accuracy" in rows[-1]) == (task != "track")
    _, again = _fit(data, spec, 3)
    assert again == rows[:3]


def test_an_lstm_is_validated_as_it_acts(
    make_env: Any, make_spec: MakeSpec, tmp_path: Path, write_data: WriteData
) -> None:
    """The validation's accuracy is that of the NumPy network, one step after another."""
    spec = make_spec("memory", kind="lstm", hidden=(8,))
    data = write_data(tmp_path / "d", make_env(EPISODES, "memory"), spec)
    imitator, rows = _fit(data, spec, 3)
    network = NumpyNetwork(spec, imitator.weights(1).arrays)
    hits = []
    for index in range(EPISODES - 8, EPISODES):
        steps, state = data.episode(index), network.initial_state(1)
        for t in range(STEPS):
            head, _, state = network.step(steps.observations[t : t + 1], state)
            hits.append(head.argmax() == steps.expert_actions[t])
    assert np.mean(hits) == pytest.approx(rows[-1]["validation_accuracy"], abs=0.01)


def test_loss_by_hand(make_spec: MakeSpec) -> None:
    imitator = Imitator(CONFIG, make_spec(), 0, LocalGroup())
    with torch.no_grad():
        for parameter in imitator.network.parameters():
            parameter.zero_()
        imitator.network.policy_head.bias.copy_(torch.tensor([0.2, 0.3, 0.5]).log())
    batch = SequenceBatch(
        torch.zeros(2, 2, 4),
        torch.tensor([[0, 2], [1, 1]]),
        torch.zeros(2, 2, dtype=torch.bool),
        torch.tensor([[True, True], [True, False]]),
    )
    objective, loss, hits = imitator._losses(imitator.network, batch)
    assert loss.item() == pytest.approx(-np.log(0.2 * 0.5 * 0.3))
    assert objective.item() == loss.item()
    assert hits.item() == 1.0


def test_moments_are_those_of_the_training_episodes(
    make_env: Any, make_spec: MakeSpec, tmp_path: Path, write_data: WriteData
) -> None:
    spec = make_spec()
    data = write_data(tmp_path / "d", make_env(EPISODES, "match"), spec)
    episodes = np.array([0, 3, 4, 17])
    imitator = Imitator(CONFIG, spec, 0, LocalGroup())
    imitator.examine(data, episodes)
    seen = np.concatenate([data.episode(e).observations for e in episodes]).astype(np.float64)
    np.testing.assert_allclose(imitator.normalizer.mean, seen.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(imitator.normalizer.std, seen.std(axis=0), rtol=1e-12)
    assert imitator.normalizer.count == 4 * STEPS
    plain = Imitator(
        dataclasses.replace(CONFIG, normalize_observations=False), spec, 0, LocalGroup()
    )
    plain.examine(data, episodes)
    assert plain.normalizer.count == 0


def test_a_state_goes_on_bit_for_bit(
    make_env: Any, make_spec: MakeSpec, tmp_path: Path, write_data: WriteData
) -> None:
    spec = make_spec("memory", kind="lstm", hidden=(8,))
    data = write_data(tmp_path / "d", make_env(EPISODES, "memory"), spec)
    imitator, _ = _fit(data, spec, 2)
    again = Imitator(CONFIG, spec, 0, LocalGroup())
    again.load_state_dict({k: v.copy() for k, v in imitator.state_dict().items()})
    training = SequenceDataset(data, np.arange(30), 8, 8)
    assert imitator.train(training, 2, lambda _: False) == again.train(training, 2, lambda _: False)
    for name, values in imitator.state_dict().items():
        np.testing.assert_array_equal(values, again.state_dict()[name])


def test_stopping_breaks_off(
    make_env: Any, make_spec: MakeSpec, tmp_path: Path, write_data: WriteData
) -> None:
    spec = make_spec()
    data = write_data(tmp_path / "d", make_env(EPISODES, "match"), spec)
    imitator = Imitator(CONFIG, spec, 0, LocalGroup())
    before = imitator.state_dict()["parameters"]
    asked = []
    training = SequenceDataset(data, np.arange(EPISODES), 8)
    assert imitator.train(training, 0, lambda steps: asked.append(steps) is None) is None
    assert asked == [0]
    np.testing.assert_array_equal(before, imitator.state_dict()["parameters"])


def test_values_of_another_space_are_refused(
    make_env: Any, make_spec: MakeSpec, tmp_path: Path, write_data: WriteData
) -> None:
    data = write_data(tmp_path / "d", make_env(EPISODES, "match"), make_spec())
    imitator = Imitator(CONFIG, make_spec(action_size=2), 0, LocalGroup())
    with pytest.raises(DatasetError, match="episode 0: an action is not of the action space"):
        imitator.examine(data, np.arange(3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.0}, "lr is 0.0"),
        ({"minibatch_size": 8}, "expected 16 or more, one sequence"),
        ({"validation_share": 0.95}, "validation_share is 0.95"),
        ({"burn_in": -1}, "burn_in is -1"),
        ({"lr_schedule": ((3, 1.0), (3, 1.0))}, "lr_schedule"),
    ],
)
def test_bad_configurations(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ImitationConfig(**changes)
