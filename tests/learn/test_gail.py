"""GAIL: the losses by hand, learning without the reward, the same result twice, bad data."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distrlcc.errors import CheckpointError, ConfigError, DatasetError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import GailConfig, PPOConfig
from distrlcc.learn.gail import (
    Demonstrations,
    Gail,
    classification_loss,
    divergence,
    gradient_penalty,
)
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec
from tests.learn.toys import EPISODES, STEPS, Task, ToyEnv, collected, make_spec, write_data

PPO = PPOConfig(gamma=0.0, lr=3e-3, minibatch_size=256, rollout_length=32)


@pytest.fixture
def config(tmp_path: Path) -> GailConfig:
    write_data(tmp_path / "match", "match", make_spec())
    return GailConfig(str(tmp_path / "match"), lr=3e-3, minibatch_size=256)


def test_the_losses_by_hand() -> None:
    expert, policy = torch.tensor([0.0, 2.0]), torch.tensor([-1.0, 0.0])
    losses = [-math.log(0.5), -math.log(1 / (1 + math.exp(-2)))]
    losses += [-math.log(1 - 1 / (1 + math.exp(1))), -math.log(0.5)]
    assert float(classification_loss(expert, policy)) == pytest.approx(sum(losses) / 2)
    sure, blind = torch.full((4,), 30.0), torch.zeros(4)
    assert float(divergence(sure, -sure)) == pytest.approx(math.log(2))
    assert float(divergence(blind, blind)) == pytest.approx(0.0, abs=1e-7)


def test_the_penalty_by_hand() -> None:
    class Square(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features.square().sum(dim=1)

    expert, policy = torch.tensor([[4.0, 0.0]]), torch.zeros(1, 2)
    # At a quarter of the way the point is (1, 0) and the slope 2.
    penalty = gradient_penalty(Square(), expert, policy, torch.tensor([0.25]))
    assert penalty.item() == pytest.approx((2.0 - 1.0) ** 2)


def _train(
    learner: Gail, env: Any, spec: PolicySpec, updates: int
) -> tuple[list[float], list[dict[str, float]]]:
    """Return each collection's mean reward, which the learner does not see, and the metrics."""
    collector, rollout = Collector(env, spec, 0), Rollout.allocate(spec, 32, 32, 16, outcomes=3)
    rewards, rows = [], []
    for _ in range(updates):
        rewards.append(collected(learner, collector, rollout).metrics()["reward"])
        rollout.rewards[:] = np.nan
        rows.append(learner.update(rollout))
        assert rollout.rewards.mean() == pytest.approx(0.0, abs=1e-5)
        assert rollout.rewards.std() == pytest.approx(1.0, abs=1e-3)
    return rewards, rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "bound", "changes"),
    [
        ("match", 0.85, {}),
        pytest.param("track", 0.9, {}, marks=pytest.mark.long),
        pytest.param("match", 0.7, {"kind": "lstm", "hidden": (32, 16)}, marks=pytest.mark.long),
    ],
)
def test_learns_without_the_reward(
    tmp_path: Path, task: Task, bound: float, changes: dict[str, Any]
) -> None:
    spec = make_spec(task, **changes)
    write_data(tmp_path / "d", task, spec)
    learner = Gail(GailConfig(str(tmp_path / "d"), lr=3e-3, minibatch_size=256), PPO, spec)
    rewards, rows = _train(learner, ToyEnv(32, task), spec, 40)
    assert np.mean(rewards[-5:]) > bound > rewards[0]
    # A policy that imitates well is hard to tell from the expert.
    assert rows[-1]["gail_divergence"] < max(row["gail_divergence"] for row in rows)
    assert all(0.0 <= row["gail_accuracy"] <= 1.0 for row in rows)


def test_the_same_seed_and_a_resume(config: GailConfig) -> None:
    spec = make_spec()
    one, other = Gail(config, PPO, spec), Gail(config, PPO, spec)
    first = _train(one, ToyEnv(32, "match"), spec, 3)
    assert _train(other, ToyEnv(32, "match"), spec, 3) == first
    resumed = Gail(config, PPO, spec)
    resumed.load_state_dict(one.state_dict())
    before = one.shared_state()
    ahead = _train(one, ToyEnv(32, "match"), spec, 2)
    assert _train(resumed, ToyEnv(32, "match"), spec, 2) == ahead
    one.undo_update(before)
    assert _train(one, ToyEnv(32, "match"), spec, 2) == ahead


def test_demonstrations_are_bounded_and_drawn(config: GailConfig) -> None:
    few = Demonstrations(dataclasses.replace(config, steps=50), make_spec(), 0)
    assert few.features.shape == (50, 4 + 3 + 3)
    states, actions, outcomes = few.features.split([4, 3, 3], dim=1)
    assert states.abs().max() > 1.0  # as they are: not scaled by what the expert meets
    assert torch.equal(actions.sum(dim=1), torch.ones(50))
    as_written = states.numpy(), actions.argmax(1).numpy(), outcomes.exp().numpy() - 0.01
    assert few.features_of(*as_written).numpy() == pytest.approx(few.features.numpy(), abs=1e-4)
    whole = Demonstrations(config, make_spec(), 0)
    assert len(whole.features) == EPISODES * STEPS
    assert torch.equal(whole.draw(np.uint64(5), 0, 8), whole.draw(np.uint64(5), 0, 8))
    assert not torch.equal(whole.draw(np.uint64(5), 0, 8), whole.draw(np.uint64(5), 9, 8))


def test_bad_demonstrations(tmp_path: Path, config: GailConfig) -> None:
    with pytest.raises(ConfigError, match=r"gail.demonstrations is empty: collect an expert"):
        Gail(GailConfig(), PPO, make_spec())
    with pytest.raises(DatasetError, match="no data set at"):
        Gail(GailConfig(str(tmp_path / "none")), PPO, make_spec())
    fewer = dataclasses.replace(make_spec(), action_size=2)
    with pytest.raises(DatasetError, match="an action is not of the action space; collect it"):
        Gail(config, PPO, fewer)
    write_data(tmp_path / "other", "memory", make_spec())
    changed = dataclasses.replace(config, demonstrations=str(tmp_path / "other"))
    other = Gail(changed, PPO, make_spec())
    with pytest.raises(CheckpointError, match="is not the data set that this run began with"):
        other.load_state_dict(Gail(config, PPO, make_spec()).state_dict())
