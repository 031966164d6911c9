"""PPO: the loss by hand, learning on toys, the KL rule, seeds and resumes."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.minibatches import Batch
from distrlcc.learn.ppo import PPO
from distrlcc.learn.returns import generalized_advantages
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]
Train = Callable[..., list[float]]
TOY = PPOConfig(gamma=0.5, lr=3e-3, minibatch_size=256, rollout_length=32)


def _setup(
    make_env: Any, spec: PolicySpec, task: str, config: PPOConfig, seed: int = 0
) -> tuple[PPO, Collector, Rollout]:
    env = make_env(32, task)
    rollout = Rollout.allocate(spec, config.rollout_length, 32, config.sequence_length)
    return PPO(config, spec, seed), Collector(env, spec, seed), rollout


def _batch(**columns: list[float]) -> Batch:
    count = len(columns["logp"])
    return Batch(
        obs=torch.zeros(1, count, 4),
        actions=torch.arange(count).unsqueeze(0),
        columns=torch.tensor([columns[k] for k in ("logp", "adv", "target")]).unsqueeze(1),
        starts=torch.zeros(1, count, dtype=torch.bool),
        states=torch.zeros(2, count, 0),
        valid=None,
    )


def test_loss_by_hand(make_spec: MakeSpec) -> None:
    config = PPOConfig(
        use_kl_loss=True, kl_coeff=0.3, vf_loss_coeff=0.5, vf_clip_param=4.0, clip_param=0.2
    )
    learner = PPO(config, make_spec())
    with torch.no_grad():
        for parameter in learner.model.network.parameters():
            parameter.zero_()
        learner.model.network.policy_head.bias.copy_(torch.tensor([0.2, 0.3, 0.5]).log())
        learner.model.network.value_head.bias.fill_(1.0)
    # Ratios 2, 0.5 and 1: the first is clipped where the advantage is positive, the second is not
    # where it is positive.
    old = [math.log(0.1), math.log(0.6), math.log(0.5)]
    batch = _batch(logp=old, adv=[1.0, 2.0, -3.0], target=[2.0, 9.0, 1.0])
    loss, metrics = learner._loss(batch, entropy_coeff=0.1)
    policy = -(1.2 * 1.0 + 0.5 * 2.0 - 3.0) / 3
    value = (1.0 + 4.0 + 0.0) / 3
    entropy = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    kl = ((2 - 1 - math.log(2)) + (0.5 - 1 - math.log(0.5)) + 0.0) / 3
    assert loss.item() == pytest.approx(policy + 0.5 * value - 0.1 * entropy + 0.3 * kl, rel=1e-5)
    expected = [3 * v for v in (policy, value, entropy, kl, 2 / 3, 1.0)]
    assert metrics.tolist() == pytest.approx(expected, rel=1e-5)


def test_clipping_stops_the_gradient(make_spec: MakeSpec) -> None:
    for advantage, moves in ((1.0, False), (-1.0, True)):
        learner = PPO(PPOConfig(use_critic=False, use_gae=False), make_spec())
        batch = _batch(logp=[math.log(0.1)], adv=[advantage], target=[0.0])
        loss, _ = learner._loss(batch, entropy_coeff=0.0)
        norm = learner.model.optimizer.step(loss, 1, lr=0.0, grad_clip=0.0)
        assert (norm.item() > 0) == moves  # ratio 3.3: only a bad action is still pushed down


@pytest.mark.parametrize(
    ("task", "changes", "config", "updates", "least"),
    [
        ("match", {}, TOY, 20, 0.9),
        (
            "match",
            {"activation": "tanh"},
            dataclasses.replace(TOY, use_critic=False, use_gae=False, gamma=0.0, use_kl_loss=True),
            25,
            0.85,
        ),
        ("track", {}, dataclasses.replace(TOY, entropy_coeff=0.0), 35, 0.9),
        (
            "memory",
            {"kind": "lstm", "hidden": (16,)},
            dataclasses.replace(TOY, lr=5e-3, sequence_length=16),
            15,
            0.95,
        ),
    ],
)
def test_learns(
    make_env: Any,
    make_spec: MakeSpec,
    train: Train,
    task: str,
    changes: Any,
    config: PPOConfig,
    updates: int,
    least: float,
) -> None:
    spec = make_spec(task, **changes)
    rewards = train(*_setup(make_env, spec, task, config), updates)
    assert rewards[0] < 0.5
    assert rewards[-1] > least


def test_memory_needs_the_recurrent_network(
    make_env: Any, make_spec: MakeSpec, train: Train
) -> None:
    rewards = train(*_setup(make_env, make_spec("memory"), "memory", TOY), 15)
    assert rewards[-1] < 0.6  # one step of eight shows the cue; a third of the rest by chance


def test_parameters_move_and_metrics_are_floats(
    make_env: Any, make_spec: MakeSpec, train: Train
) -> None:
    learner, collector, rollout = _setup(make_env, make_spec(), "match", TOY)
    before = learner.weights()
    train(learner, collector, rollout, 1)
    after = learner.weights()
    assert (before.version, after.version) == (0, 1)
    for name, array in before.arrays.items():
        assert not np.array_equal(array, after.arrays[name]), name
    metrics = learner.update(rollout)
    assert all(type(value) is float for value in metrics.values()), metrics
    assert metrics["staleness"] == 1.0


def test_explained_variance_is_of_the_returns(make_env: Any, make_spec: MakeSpec) -> None:
    learner, collector, rollout = _setup(make_env, make_spec(), "match", TOY)
    collector.set_weights(learner.weights())
    collector.collect(rollout)
    estimate = generalized_advantages(rollout, TOY.gamma, TOY.lambda_)
    advantages, returns = estimate.advantages, estimate.targets
    explained = 1.0 - float(advantages.var() / returns.var())
    metrics = learner.update(rollout)
    assert metrics["explained_variance"] == pytest.approx(explained, rel=1e-4)


def test_same_seed_same_result(make_env: Any, make_spec: MakeSpec, train: Train) -> None:
    spec = make_spec("memory", kind="lstm", hidden=(8,))
    config = dataclasses.replace(TOY, minibatch_size=300)
    results = []
    for seed in (5, 5, 6):
        learner, collector, rollout = _setup(make_env, spec, "memory", config, seed)
        rewards = train(learner, collector, rollout, 3)
        results.append((rewards, learner.weights().arrays["policy_head.weight"]))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert not np.array_equal(results[0][1], results[2][1])


@pytest.mark.parametrize("changes", [{}, {"kind": "lstm", "hidden": (8,)}])
def test_resume_is_bit_identical(
    make_env: Any, make_spec: MakeSpec, train: Train, changes: Any
) -> None:
    spec = make_spec("memory", **changes)
    config = dataclasses.replace(
        TOY, use_kl_loss=True, lr_schedule=((0, 1e-2), (5000, 1e-3)), kl_target=1e-4
    )
    learner, collector, rollout = _setup(make_env, spec, "memory", config)
    train(learner, collector, rollout, 3)
    state = learner.state_dict()
    _check_plain(state)
    again = PPO(config, spec)
    again.load_state_dict(state)
    segment = rollout.copy()
    for _ in range(2):
        first, second = learner.update(segment), again.update(segment)
        assert first == second
    for name, array in learner.weights().arrays.items():
        np.testing.assert_array_equal(array, again.weights().arrays[name])
    _check_same(learner.state_dict(), again.state_dict())


def _check_plain(state: Any) -> None:
    if isinstance(state, dict):
        assert all(isinstance(key, str) for key in state)
        for value in state.values():
            _check_plain(value)
    else:
        assert isinstance(state, int | float | str | np.ndarray | torch.Tensor)


def _check_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _check_same(a[key], b[key])
    else:
        np.testing.assert_array_equal(a, b)


def test_kl_coefficient_adapts(make_spec: MakeSpec) -> None:
    learner = PPO(PPOConfig(use_kl_loss=True, kl_coeff=0.2, kl_target=0.01), make_spec())
    seen = []
    for kl in (0.021, 0.02, 0.005, 0.0049):
        learner._adapt_kl_coeff(kl)
        seen.append(learner._kl_coeff)
    assert seen == pytest.approx([0.3, 0.3, 0.3, 0.15])
    off = PPO(PPOConfig(use_kl_loss=False, kl_coeff=0.2), make_spec())
    off._adapt_kl_coeff(9.0)
    assert off._kl_coeff == 0.2


def test_schedules_follow_environment_steps(
    make_env: Any, make_spec: MakeSpec, train: Train
) -> None:
    config = dataclasses.replace(
        TOY, lr_schedule=((0, 4e-3), (2048, 0.0)), entropy_coeff_schedule=((1024, 0.0), (1025, 1.0))
    )
    learner, collector, rollout = _setup(make_env, make_spec(), "match", config)
    collector.set_weights(learner.weights())
    seen = []
    for _ in range(3):
        collector.collect(rollout)
        metrics = learner.update(rollout)
        seen.append((metrics["lr"], metrics["entropy_coeff"]))
    assert seen == [(4e-3, 0.0), (2e-3, 0.0), (0.0, 1.0)]


def test_without_shuffling_epochs_repeat_minibatches(
    make_env: Any, make_spec: MakeSpec, train: Train
) -> None:
    config = dataclasses.replace(TOY, shuffle_batch_per_epoch=False)
    learner, collector, rollout = _setup(make_env, make_spec(), "match", config)
    assert train(learner, collector, rollout, 20)[-1] > 0.8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minibatch_size": 0}, "minibatch_size is 0: expected 1 or more"),
        ({"num_epochs": 0}, "num_epochs"),
        ({"gamma": 1.01}, "gamma is 1.01: expected 0 to 1"),
        ({"lr": 0.0}, "lr is 0.0: expected more than 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"entropy_coeff": -1.0}, "entropy_coeff"),
        ({"use_critic": False}, "use_gae needs a critic"),
        ({"lr_schedule": ((5, 1.0), (4, 1.0))}, "lr_schedule"),
    ],
)
def test_bad_configurations(make_spec: MakeSpec, changes: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPO(PPOConfig(**changes), make_spec())


def test_a_minibatch_holds_a_sequence(make_spec: MakeSpec) -> None:
    config = PPOConfig(minibatch_size=15, sequence_length=16)
    PPO(config, make_spec())
    with pytest.raises(ConfigError, match="minibatch_size is 15: expected 16 or more"):
        PPO(config, make_spec(kind="lstm", hidden=(8,)))
