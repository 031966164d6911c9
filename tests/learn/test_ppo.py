"""PPO: the loss by hand, learning on toys, the KL rule, V-trace, seeds and resumes."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from distrlcc.errors import ConfigError
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.minibatches import Batch
from distrlcc.learn.ppo import PPO
from distrlcc.learn.returns import vtrace
from distrlcc.learn.rollout import Rollout
from tests.learn.toys import Task, collected, make_spec, same_weights, say, setup, train
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
    torch.nn.init.ones_(learner.network.get_parameter("value_head.bias"))
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


@pytest.mark.parametrize(("bound", "beyond"), [(-5.0, -1.0), (2.0, 1.0)])
def test_a_deviation_that_has_met_its_bound_comes_back(bound: float, beyond: float) -> None:
    learner = PPO(PPOConfig(), make_spec("track"))
    log_std = learner.network.log_std
    assert log_std is not None
    found = []
    for sign in (beyond,) * 40 + (-beyond,) * 40:
        distribution = learner.network.distribution(torch.zeros(1, 1, 1))
        loss = -sign * distribution.entropy().mean()
        learner.optimizer.step(loss, 1, lr=0.3, grad_clip=None)
        found.append(log_std.item())
    assert found[39] == bound
    assert all(-5.0 <= each <= 2.0 for each in found)
    assert abs(found[-1] - bound) > 1.0


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
def test_learns(task: Task, changes: Any, config: Any, updates: int, least: float) -> None:
    learner, collector, rollout = setup(PPO, dataclasses.replace(TOY, **config), task, **changes)
    before = learner.weights()
    rewards = train(learner, collector, rollout, updates)
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


class Watched(PPO):
    """Keeps the KL of each minibatch, which it sums over ranks where anything follows from it."""

    def loss(self, batch: Batch, entropy_coeff: float) -> tuple[torch.Tensor, torch.Tensor]:
        loss, metrics = super().loss(batch, entropy_coeff)
        self.kls = [*getattr(self, "kls", []), float(metrics[3] / metrics[5])]
        return loss, metrics


def _watched(**changes: Any) -> tuple[Watched, dict[str, float]]:
    config = dataclasses.replace(LAGGED, num_epochs=4, **changes)
    learner, collector, rollout = setup(Watched, config, count=12)
    collected(learner, collector, rollout)
    return learner, learner.update(rollout)


def test_an_update_stops_before_the_minibatch_whose_kl_is_above_one_and_a_half_targets() -> None:
    off, metrics = _watched()
    assert not {"stopped_early", "kl_coeff"} & set(metrics)
    never, metrics = _watched(target_kl=1e9)
    assert metrics["stopped_early"] == 0.0
    same(off.state_dict(), never.state_dict())
    kls, steps = off.kls, len(off.kls)
    assert steps > 8
    assert off.state_dict()["model"]["adam_step"] == steps
    for times, least in ((0.999, 1), (1.001, 1), (0.999, steps - 3)):
        target = max(kls[1 : least + 1]) / 1.5 * times
        first = next((k for k, kl in enumerate(kls) if kl > 1.5 * target), steps)
        learner, metrics = _watched(target_kl=target)
        assert learner.state_dict()["model"]["adam_step"] == first
        assert metrics["stopped_early"] == float(first < steps)
        assert learner.kls == kls[: first + 1]
    learner, metrics = _watched(target_kl=max(kls) / 1.5 * 0.999)
    assert metrics["stopped_early"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_learning_rate_follows_the_kl_and_is_kept() -> None:
    for desired in (1e-6, 1e-3, 10.0):
        learner, metrics = _watched(desired_kl=desired)
        lr = LAGGED.lr
        for kl in learner.kls:
            if kl > 2 * desired:
                lr = max(lr / 1.5, 1e-5)
            elif kl < desired / 2:
                lr = min(lr * 1.5, 1e-2)
        assert metrics["lr"] == pytest.approx(lr)
        assert metrics["lr"] != LAGGED.lr
        resumed = PPO(learner.config, make_spec())
        resumed.load_state_dict(learner.state_dict())
        same(resumed.state_dict(), learner.state_dict())
        assert learner.state_dict()["adapted_lr"] == metrics["lr"]
    assert "adapted_lr" not in _watched()[0].state_dict()
    with pytest.raises(ConfigError, match=r"lr_schedule is .* as the rate adapts to desired_kl"):
        PPOConfig(desired_kl=0.01, lr_schedule=((0, 1e-3),))
    with pytest.raises(ConfigError, match=r"lr is 0\.05: expected"):
        PPOConfig(desired_kl=0.01, lr=0.05)
    for name in ("target_kl", "desired_kl"):
        with pytest.raises(ConfigError, match=f"{name} is 0: expected more than 0"):
            PPOConfig(**dict[str, Any]({name: 0}))


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
def test_without_lag_learns_the_same(task: Task, changes: Any, use_critic: bool) -> None:
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
