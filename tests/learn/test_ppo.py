"""PPO: the loss by hand, learning on toys, the KL rule, V-trace, seeds and resumes."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.learn.config import PPOConfig
from distrlcc.learn.minibatches import Batch
from distrlcc.learn.ppo import PPO
from distrlcc.learn.returns import vtrace
from distrlcc.learn.rollout import Rollout
from tests.learn.toys import collected, make_spec, same_weights, say, setup, train
from tests.trees import same

TOY = PPOConfig(gamma=0.5, lr=3e-3, minibatch_size=256, rollout_length=32)


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


def test_loss_by_hand() -> None:
    config = PPOConfig(
        use_kl_loss=True, kl_coeff=0.3, vf_loss_coeff=0.5, vf_clip_param=4.0, clip_param=0.2
    )
    learner = PPO(config, make_spec())
    say(learner, 0.2, 0.3, 0.5)
    torch.nn.init.ones_(learner.network.value_head.bias)
    # Ratios 2, 0.5 and 1: the first is clipped where the advantage is positive, the second is not
    # where it is positive.
    old = [math.log(0.1), math.log(0.6), math.log(0.5)]
    batch = _batch(logp=old, adv=[1.0, 2.0, -3.0], target=[2.0, 9.0, 1.0])
    loss, metrics = learner.loss(batch, entropy_coeff=0.1)
    policy = -(1.2 * 1.0 + 0.5 * 2.0 - 3.0) / 3
    value = (1.0 + 4.0 + 0.0) / 3
    entropy = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    kl = ((2 - 1 - math.log(2)) + (0.5 - 1 - math.log(0.5)) + 0.0) / 3
    assert loss.item() == pytest.approx(policy + 0.5 * value - 0.1 * entropy + 0.3 * kl, rel=1e-5)
    expected = [3 * v for v in (policy, value, entropy, kl, 2 / 3, 1.0)]
    assert metrics.tolist() == pytest.approx(expected, rel=1e-5)


def test_clipping_stops_the_gradient() -> None:
    for advantage, moves in ((1.0, False), (-1.0, True)):
        learner = PPO(PPOConfig(use_critic=False, use_gae=False), make_spec())
        batch = _batch(logp=[math.log(0.1)], adv=[advantage], target=[0.0])
        loss, _ = learner.loss(batch, entropy_coeff=0.0)
        norm = learner.optimizer.step(loss, 1, lr=0.0, grad_clip=0.0)
        assert (norm.item() > 0) == moves  # ratio 3.3: only a bad action is still pushed down


PLAIN = {"use_critic": False, "use_gae": False, "gamma": 0.0, "use_kl_loss": True}
LSTM = {"kind": "lstm", "hidden": (8,)}
MIN_GRU = {"kind": "mingru", "hidden": (8,)}


@pytest.mark.parametrize(
    ("task", "changes", "config", "updates", "least"),
    [
        ("match", {}, {}, 20, 0.9),
        ("match", {}, {"shuffle_batch_per_epoch": False}, 20, 0.8),
        ("match", {"activation": "tanh"}, PLAIN, 25, 0.85),
        ("track", {}, {"entropy_coeff": 0.0}, 35, 0.9),
        ("memory", LSTM | {"hidden": (16,)}, {"lr": 5e-3, "sequence_length": 16}, 15, 0.95),
        ("memory", MIN_GRU | {"hidden": (16,)}, {"lr": 5e-3, "sequence_length": 16}, 15, 0.95),
    ],
)
def test_learns(task: str, changes: Any, config: Any, updates: int, least: float) -> None:
    learner, *rest = setup(PPO, dataclasses.replace(TOY, **config), task, **changes)
    before = learner.weights()
    rewards = train(learner, *rest, updates)
    assert rewards[0] < 0.5
    assert rewards[-1] > least
    after = learner.weights()
    assert (before.version, after.version) == (0, updates)
    for name, array in before.arrays.items():
        assert not np.array_equal(array, after.arrays[name]) or "value" in name, name


def test_explained_variance_is_of_the_returns() -> None:
    learner, rollout = _collected(TOY)
    estimate = vtrace(rollout, rollout.logp, rollout.values, TOY.gamma, TOY.lambda_)
    advantages, returns = estimate.advantages, estimate.targets
    explained = 1.0 - float(advantages.var() / returns.var())
    metrics = learner.update(rollout)
    assert metrics["explained_variance"] == pytest.approx(explained, rel=1e-4)


@pytest.mark.parametrize("changes", [{}, LSTM, MIN_GRU])
def test_the_same_seed_and_a_resume_are_bit_identical(changes: Any) -> None:
    schedule = ((0, 1e-2), (5000, 1e-3))
    config = dataclasses.replace(
        TOY, minibatch_size=300, use_kl_loss=True, lr_schedule=schedule, kl_target=1e-4
    )
    ends = []
    for seed in (5, 5, 6):
        learner, collector, rollout = setup(PPO, config, "memory", seed, **changes)
        ends.append((learner, rollout, train(learner, collector, rollout, 3)))
    (learner, rollout, rewards), (twin, _, again), (other, _, _) = ends
    assert rewards == again
    same(learner.state_dict(), twin.state_dict())
    heads = [each.weights().arrays["policy_head.weight"] for each in (learner, other)]
    assert not np.array_equal(*heads)
    resumed, segment = PPO(config, make_spec("memory", **changes), 5), rollout.copy()
    resumed.load_state_dict(learner.state_dict())
    for _ in range(2):
        assert learner.update(segment) == resumed.update(segment)
    same(learner.state_dict(), resumed.state_dict())


def test_kl_coefficient_adapts_beyond_twice_and_below_half_of_its_target() -> None:
    def update(target: float) -> tuple[float, float]:
        config = dataclasses.replace(LAGGED, use_kl_loss=True, kl_coeff=0.2, kl_target=target)
        learner, rollout = _collected(config)
        metrics = learner.update(rollout)
        return metrics["kl"], metrics["kl_coeff"]

    kl, _ = update(1.0)
    found = [update(kl / times)[1] for times in (2.01, 1.99, 0.51, 0.49)]
    assert found == pytest.approx([0.3, 0.2, 0.2, 0.1])


def test_schedules_follow_environment_steps() -> None:
    config = dataclasses.replace(
        TOY, lr_schedule=((0, 4e-3), (2048, 0.0)), entropy_coeff_schedule=((1024, 0.0), (1025, 1.0))
    )
    learner, collector, rollout = setup(PPO, config)
    collector.set_weights(learner.weights())
    seen = []
    for _ in range(3):
        collector.collect(rollout)
        metrics = learner.update(rollout)
        seen.append((metrics["lr"], metrics["entropy_coeff"]))
    assert seen == [(4e-3, 0.0), (2e-3, 0.0), (0.0, 1.0)]


LAGGED = PPOConfig(gamma=0.5, lr=3e-3, minibatch_size=64, rollout_length=13, sequence_length=5)
KINDS = [("match", {}), ("track", {}), ("memory", LSTM), ("track", LSTM), ("memory", MIN_GRU)]


def _collected(config: PPOConfig, task: Any = "match", **changes: Any) -> tuple[PPO, Rollout]:
    learner, collector, rollout = setup(PPO, config, task, count=12, **changes)
    collected(learner, collector, rollout)
    return learner, rollout


@pytest.mark.parametrize(("task", "changes"), KINDS)
@pytest.mark.parametrize("use_critic", [True, False])
def test_without_lag_learns_the_same(task: str, changes: Any, use_critic: bool) -> None:
    config = dataclasses.replace(LAGGED, use_critic=use_critic, use_gae=use_critic)
    without, rollout = _collected(config, task, **changes)
    with_ = PPO(dataclasses.replace(config, use_vtrace=True), make_spec(task, **changes))
    expected, metrics = without.update(rollout), with_.update(rollout)
    same_weights(without.weights(), with_.weights(), atol=1e-5)
    assert metrics.pop("vtrace_rho") == pytest.approx(1.0, abs=1e-5)
    assert metrics.pop("vtrace_clip_fraction") == 0.0
    assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("task", "changes"), KINDS)
def test_stale_rollouts(task: str, changes: Any) -> None:
    config = dataclasses.replace(LAGGED, use_vtrace=True, lr=0.03)
    learner, rollout = _collected(config, task, **changes)
    metrics = [learner.update(rollout) for _ in range(3)]
    assert [m["staleness"] for m in metrics] == [0.0, 1.0, 2.0]
    for values in metrics:
        assert all(type(v) is float and math.isfinite(v) for v in values.values()), values
    assert 0.0 < metrics[-1]["vtrace_rho"] < 1.0
    assert 0.0 < metrics[-1]["vtrace_clip_fraction"] < 1.0


def test_the_surrogate_compares_with_the_updates_start() -> None:
    config = dataclasses.replace(LAGGED, num_epochs=1, minibatch_size=10**6, use_vtrace=True)
    learner, rollout = _collected(config)
    rollout.logp -= 3.0  # the policy that acted found its own actions unlikely
    metrics = learner.update(rollout)  # a single minibatch: the policy is still that of the start
    assert metrics["clip_fraction"] == 0.0
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert (metrics["vtrace_rho"], metrics["vtrace_clip_fraction"]) == (1.0, 1.0)
