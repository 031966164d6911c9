"""V-trace against the paper's double sum, against GAE, and in PPO's update."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.ppo import PPO
from distrlcc.learn.returns import generalized_advantages, vtrace
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]
STEPS, COUNT = 25, 6
TOY = PPOConfig(gamma=0.5, lr=3e-3, minibatch_size=64, rollout_length=13, sequence_length=5)
LSTM = {"kind": "lstm", "hidden": (8,)}
KINDS = [("match", {}), ("track", {}), ("memory", LSTM), ("track", LSTM)]


def _random_rollout(spec: PolicySpec) -> tuple[Rollout, Any, Any]:
    """Return a rollout, log-probabilities up to e times off, and other values."""
    generator = np.random.default_rng(0)
    rollout = Rollout.allocate(spec, STEPS + 3, COUNT)
    rollout.steps = STEPS
    shape = (STEPS + 3, COUNT)
    rollout.rewards[:] = generator.normal(size=shape)
    rollout.values[:] = generator.normal(size=shape)
    rollout.logp[:] = -generator.exponential(size=shape)
    rollout.terminated[:] = generator.random(shape) < 0.1
    rollout.truncated[:] = generator.random(shape) < 0.15
    rollout.final_values[:] = generator.normal(size=shape) * rollout.truncated
    rollout.last_values[:] = generator.normal(size=COUNT)
    logp = rollout.logp[:STEPS] + generator.uniform(-1, 1, (STEPS, COUNT)).astype(np.float32)
    values = generator.normal(size=(STEPS, COUNT)).astype(np.float32)
    return rollout, logp, values


def _double_sum(
    rollout: Rollout,
    ratios: NDArray[np.float64],
    values: NDArray[Any],
    gamma: float,
    lambda_: float,
    bounds: tuple[float, float],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return advantages and targets as the paper writes them: equation 1, and section 4.2."""
    advantages, targets = np.zeros((STEPS, COUNT)), np.zeros((STEPS, COUNT))
    rho, c = (np.minimum(bound, ratios) for bound in bounds)
    c = lambda_ * c

    def ends(t: int, n: int) -> bool:
        return bool(rollout.terminated[t, n] or rollout.truncated[t, n] or t + 1 == STEPS)

    def next_value(t: int, n: int) -> float:
        if rollout.terminated[t, n]:
            return 0.0
        if rollout.truncated[t, n]:
            return float(rollout.final_values[t, n])
        return float(rollout.last_values[n] if t + 1 == STEPS else values[t + 1, n])

    def target(s: int, n: int) -> float:
        total = float(values[s, n])
        for t in range(s, STEPS):
            error = rollout.rewards[t, n] + gamma * next_value(t, n) - values[t, n]
            total += gamma ** (t - s) * float(np.prod(c[s:t, n])) * rho[t, n] * error
            if ends(t, n):
                break
        return total

    for n in range(COUNT):
        for s in range(STEPS):
            targets[s, n] = target(s, n)
            following = next_value(s, n)
            if not ends(s, n):
                following += lambda_ * (target(s + 1, n) - following)
            error = rollout.rewards[s, n] + gamma * following - values[s, n]
            advantages[s, n] = rho[s, n] * error
    return advantages, targets


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.8), (0.99, 1.0), (0.5, 0.0), (0.0, 0.9)])
@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 0.7), (100.0, 100.0)])
def test_equals_the_double_sum(
    make_spec: MakeSpec, gamma: float, lambda_: float, bounds: tuple[float, float]
) -> None:
    rollout, logp, values = _random_rollout(make_spec())
    ratios = np.exp(logp.astype(np.float64) - rollout.logp[:STEPS])
    advantages, targets = _double_sum(rollout, ratios, values, gamma, lambda_, bounds)
    found = vtrace(rollout, logp, values, gamma, lambda_, rho_bound=bounds[0], c_bound=bounds[1])
    np.testing.assert_allclose(found.advantages, advantages, atol=2e-5)
    np.testing.assert_allclose(found.targets, targets, atol=2e-5)
    np.testing.assert_allclose(found.residuals, targets - values, atol=2e-5)
    np.testing.assert_allclose(found.rho, np.minimum(ratios, bounds[0]), rtol=1e-5)
    assert found.clipped.mean() == np.mean(ratios > bounds[0])


@pytest.mark.parametrize("use_critic", [True, False])
@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_without_lag_equals_gae(make_spec: MakeSpec, use_critic: bool, lambda_: float) -> None:
    rollout, _, _ = _random_rollout(make_spec())
    options = {"use_critic": use_critic, "reward_scale": 0.3}
    returns = generalized_advantages(rollout, 0.9, lambda_, **options)
    advantages, targets = returns.advantages, returns.targets
    found = vtrace(rollout, rollout.logp[:STEPS], rollout.values[:STEPS], 0.9, lambda_, **options)
    np.testing.assert_array_equal(found.advantages, advantages)
    np.testing.assert_array_equal(found.targets, targets)
    assert (found.rho == 1.0).all()
    assert not found.clipped.any()


def test_ratios_beyond_all_bounds_stay_finite(make_spec: MakeSpec) -> None:
    rollout, _, values = _random_rollout(make_spec())
    rollout.logp[:] = np.where(np.arange(COUNT) % 2, -500.0, 500.0)
    found = vtrace(rollout, np.zeros_like(values), values, 0.9, 0.9, rho_bound=3.0)
    np.testing.assert_allclose(found.rho[0], [0.0, 3.0] * 3, rtol=1e-6)
    assert np.isfinite(found.advantages).all()


def test_other_shapes_are_refused(make_spec: MakeSpec) -> None:
    rollout, logp, values = _random_rollout(make_spec())
    with pytest.raises(ValueError, match=r"logp \(24, 6\), values \(25, 6\): expected \(25, 6\)"):
        vtrace(rollout, logp[1:], values, 0.9, 0.9)


def _collected(
    make_env: Any, spec: PolicySpec, task: str, config: PPOConfig
) -> tuple[PPO, Rollout]:
    learner = PPO(config, spec)
    collector = Collector(make_env(12, task), spec, 0)
    rollout = Rollout.allocate(spec, config.rollout_length, 12, config.sequence_length)
    collector.set_weights(learner.weights())
    collector.collect(rollout)
    return learner, rollout


@pytest.mark.parametrize(("task", "changes"), KINDS)
def test_evaluation_is_what_acted(
    make_env: Any, make_spec: MakeSpec, task: str, changes: Any
) -> None:
    learner, rollout = _collected(make_env, make_spec(task, **changes), task, TOY)
    logp, values = learner._evaluate(rollout)  # 13 rows: with an LSTM the last sequence is padded
    np.testing.assert_allclose(logp, rollout.logp, atol=1e-5)
    np.testing.assert_allclose(values, rollout.values, atol=1e-5)


@pytest.mark.parametrize(("task", "changes"), KINDS)
@pytest.mark.parametrize("use_critic", [True, False])
def test_without_lag_learns_the_same(
    make_env: Any, make_spec: MakeSpec, task: str, changes: Any, use_critic: bool
) -> None:
    spec = make_spec(task, **changes)
    config = dataclasses.replace(TOY, use_critic=use_critic, use_gae=use_critic)
    without, rollout = _collected(make_env, spec, task, config)
    with_ = PPO(dataclasses.replace(config, use_vtrace=True), spec)
    expected, metrics = without.update(rollout), with_.update(rollout)
    for name, array in without.weights().arrays.items():
        np.testing.assert_allclose(with_.weights().arrays[name], array, atol=1e-5, err_msg=name)
    assert metrics.pop("vtrace_rho") == pytest.approx(1.0, abs=1e-5)
    assert metrics.pop("vtrace_clip_fraction") == 0.0
    assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("task", "changes"), KINDS)
def test_stale_rollouts(make_env: Any, make_spec: MakeSpec, task: str, changes: Any) -> None:
    config = dataclasses.replace(TOY, use_vtrace=True, lr=0.03)
    learner, rollout = _collected(make_env, make_spec(task, **changes), task, config)
    metrics = [learner.update(rollout) for _ in range(3)]
    assert [m["staleness"] for m in metrics] == [0.0, 1.0, 2.0]
    for values in metrics:
        assert all(type(v) is float and math.isfinite(v) for v in values.values()), values
    assert 0.0 < metrics[-1]["vtrace_rho"] < 1.0
    assert 0.0 < metrics[-1]["vtrace_clip_fraction"] < 1.0


def test_the_surrogate_compares_with_the_updates_start(make_env: Any, make_spec: MakeSpec) -> None:
    config = dataclasses.replace(TOY, num_epochs=1, minibatch_size=10**6, use_vtrace=True)
    learner, rollout = _collected(make_env, make_spec(), "match", config)
    rollout.logp -= 3.0  # the policy that acted found its own actions unlikely
    metrics = learner.update(rollout)  # a single minibatch: the policy is still that of the start
    assert metrics["clip_fraction"] == 0.0
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert (metrics["vtrace_rho"], metrics["vtrace_clip_fraction"]) == (1.0, 1.0)


class TwinReducer:
    """A second rank with the same samples; counts exchanges until the first gradient's."""

    def __init__(self) -> None:
        self.before: int | None = None
        self._sums = 0

    def mean_gradient(self, gradient: torch.Tensor, weight: float) -> None:
        if self.before is None:
            self.before = self._sums

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        self._sums += 1
        return 2.0 * values


def test_ranks_agree_in_one_exchange(make_env: Any, make_spec: MakeSpec) -> None:
    spec = make_spec()
    config = dataclasses.replace(TOY, minibatch_size=10**6, use_vtrace=True, lr=0.03)
    alone, rollout = _collected(make_env, spec, "match", config)
    reducer = TwinReducer()
    twin = PPO(config, spec, 0, reducer)
    for _ in range(2):  # the second time with a stale rollout
        expected, metrics = alone.update(rollout), twin.update(rollout)
    assert reducer.before == 1
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for name, array in alone.weights().arrays.items():
        np.testing.assert_allclose(twin.weights().arrays[name], array, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vtrace_rho": 0.0}, "vtrace_rho is 0.0: expected more than 0"),
        ({"vtrace_c": -1.0}, "vtrace_c is -1.0: expected more than 0"),
        ({"vtrace_c": 2.0}, "vtrace_c is 2.0, vtrace_rho 1.0: expected vtrace_c to be vtrace_rho"),
        ({"vtrace_rho": math.inf}, "and both finite"),
        ({"vtrace_rho": math.nan}, "vtrace_rho is nan"),
    ],
)
def test_bad_configurations(make_spec: MakeSpec, changes: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPO(PPOConfig(**changes), make_spec())
