"""DAgger: learning on toys, the data set's ring, seeds and resumes."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.learn.config import DaggerConfig
from distrlcc.learn.dagger import Dagger, LabelledSteps
from distrlcc.learn.minibatches import Batch
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import NETWORKS
from tests.learn.toys import Task, make_spec, same_weights, say, setup, train

TOY = DaggerConfig(lr=5e-3, minibatch_size=256, rollout_length=32)


@pytest.mark.parametrize(
    ("task", "changes", "least"),
    [("match", {}, 0.93), ("track", {}, 0.9), ("memory", {"kind": "lstm", "hidden": (16,)}, 0.97)],
)
def test_learns(task: Task, changes: Any, least: float) -> None:
    learner, collector, rollout = setup(Dagger, TOY, task, **changes)
    rewards = train(learner, collector, rollout, 6)
    assert rewards[0] == 1.0  # the expert acts in the first round
    assert rewards[-1] > least
    assert not learner.weights().expert_acts


def test_expert_rounds_and_rounds_that_end_early_without_gain() -> None:
    rewards = train(*setup(Dagger, dataclasses.replace(TOY, expert_rounds=2, num_epochs=1)), 3)
    assert rewards[:2] == [1.0, 1.0]
    assert rewards[2] < 1.0
    learner, collector, rollout = setup(Dagger, dataclasses.replace(TOY, min_gain=10.0))
    train(learner, collector, rollout, 1)
    metrics = learner.update(rollout)
    assert (metrics["epochs"], metrics["dataset_samples"]) == (2.0, 2048.0)
    assert all(type(value) is float for value in metrics.values())


def test_a_users_network_learns() -> None:
    examples = Path(__file__).parents[2] / "examples/plugins"
    kind = NETWORKS.pinned(f"{examples}/network.py:Gated")
    rewards = train(*setup(Dagger, TOY, kind=kind, hidden=(16,)), 4)
    assert rewards[-1] > 0.8


@pytest.mark.parametrize(
    "changes", [{}, {"kind": "lstm", "hidden": (8,)}, {"kind": "mingru", "hidden": (8,)}]
)
def test_resume_is_bit_identical(changes: Any) -> None:
    config = dataclasses.replace(TOY, capacity=2500, num_epochs=2)
    learner, collector, rollout = setup(Dagger, config, "memory", **changes)
    train(learner, collector, rollout, 3)
    again = Dagger(config, make_spec("memory", **changes))
    again.load_state_dict(learner.state_dict())
    segment = rollout.copy()
    for _ in range(2):
        assert learner.update(segment) == again.update(segment)
    same_weights(learner.weights(), again.weights())


def _sequences(first: int, count: int) -> Batch:
    values = torch.arange(first, first + count, dtype=torch.float32).repeat(2, 1)
    return Batch(
        obs=values.unsqueeze(-1).repeat(1, 1, 4),
        actions=values.long(),
        columns=torch.zeros(0, 2, count),
        starts=values > 0,
        states=values.unsqueeze(-1).repeat(1, 1, 8),
        valid=None,
    )


def test_the_oldest_make_room() -> None:
    spec = make_spec(kind="lstm", hidden=(8,))
    dataset = LabelledSteps(spec, capacity=5, count=2, length=2)
    assert dataset.rows == 0
    dataset.add(_sequences(0, 6))
    assert (dataset.rows, dataset.samples) == (3, 12)
    dataset.add(_sequences(6, 8))
    held = dataset.ring.take(torch.arange(10))
    assert sorted(held.actions[0].tolist()) == list(range(4, 14))
    torch.testing.assert_close(held.obs[1, :, 0], held.states[0, :, 0])
    assert held.samples == 20
    dataset.add(_sequences(14, 24))
    assert sorted(dataset.ring.take(torch.arange(10)).actions[0].tolist()) == list(range(28, 38))
    again = LabelledSteps.from_state(spec, dataset.state_dict())
    again.add(_sequences(38, 2))
    assert sorted(again.ring.take(torch.arange(10)).actions[0].tolist()) == list(range(30, 40))


def test_loss_by_hand() -> None:
    learner = Dagger(dataclasses.replace(TOY, num_epochs=1), make_spec())
    say(learner, 0.2, 0.3, 0.5)
    rollout = Rollout.allocate(make_spec(), 1, 2)
    rollout.steps = 1
    rollout.expert_actions[:] = [0, 2]
    metrics = learner.update(rollout)
    assert metrics["imitation_loss"] == pytest.approx(-(np.log(0.2) + np.log(0.5)) / 2)
    assert metrics["imitation_accuracy"] == 0.5
    continuous = make_spec("track")
    rollout = Rollout.allocate(continuous, 1, 2)
    rollout.steps = 1
    assert "imitation_accuracy" not in Dagger(TOY, continuous).update(rollout)
