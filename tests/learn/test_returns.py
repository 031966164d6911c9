"""Advantages by hand and against brute force over every episode's tail."""

from collections.abc import Callable

import numpy as np
import pytest

from distrlcc.learn.returns import generalized_advantages
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

MakeSpec = Callable[..., PolicySpec]


def _random_rollout(spec: PolicySpec, steps: int, count: int) -> Rollout:
    generator = np.random.default_rng(0)
    rollout = Rollout.allocate(spec, steps + 3, count)
    rollout.steps = steps
    shape = (steps + 3, count)
    rollout.rewards[:] = generator.normal(size=shape)
    rollout.values[:] = generator.normal(size=shape)
    rollout.terminated[:] = generator.random(shape) < 0.1
    rollout.truncated[:] = generator.random(shape) < 0.15
    rollout.final_values[:] = generator.normal(size=shape) * rollout.truncated
    rollout.last_values[:] = generator.normal(size=count)
    return rollout


def _brute_force(rollout: Rollout, gamma: float, lambda_: float) -> np.ndarray:
    advantages = np.zeros((rollout.steps, rollout.count))
    for n in range(rollout.count):
        for begin in range(rollout.steps):
            weight = 1.0
            for t in range(begin, rollout.steps):
                if rollout.terminated[t, n]:
                    following = 0.0
                elif rollout.truncated[t, n]:
                    following = rollout.final_values[t, n]
                elif t + 1 == rollout.steps:
                    following = rollout.last_values[n]
                else:
                    following = rollout.values[t + 1, n]
                delta = rollout.rewards[t, n] + gamma * following - rollout.values[t, n]
                advantages[begin, n] += weight * delta
                weight *= gamma * lambda_
                if rollout.terminated[t, n] or rollout.truncated[t, n]:
                    break
    return advantages


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.8), (0.99, 1.0), (0.5, 0.0), (0.0, 0.9)])
def test_equals_brute_force(make_spec: MakeSpec, gamma: float, lambda_: float) -> None:
    rollout = _random_rollout(make_spec(), 25, 6)
    returns = generalized_advantages(rollout, gamma, lambda_)
    advantages, targets = returns.advantages, returns.targets
    np.testing.assert_allclose(advantages, _brute_force(rollout, gamma, lambda_), atol=1e-5)
    np.testing.assert_allclose(targets, advantages + rollout.values[:25], atol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (False, False, 1.0 + 0.5 * 6.0 - 2.0),
        (False, True, 1.0 + 0.5 * 10.0 - 2.0),
        (True, False, 1.0 - 2.0),
        (True, True, 1.0 - 2.0),
    ],
)
def test_only_termination_is_not_bootstrapped(
    make_spec: MakeSpec, terminated: bool, truncated: bool, expected: float
) -> None:
    rollout = Rollout.allocate(make_spec(), 1, 1)
    rollout.steps = 1
    rollout.rewards[0, 0], rollout.values[0, 0], rollout.last_values[0] = 1.0, 2.0, 6.0
    rollout.terminated[0, 0], rollout.truncated[0, 0] = terminated, truncated
    rollout.final_values[0, 0] = 10.0 if truncated else 0.0
    advantages = generalized_advantages(rollout, 0.5, 0.95).advantages
    assert advantages.tolist() == [[expected]]


def test_without_critic_returns_by_hand(make_spec: MakeSpec) -> None:
    rollout = _random_rollout(make_spec(), 4, 1)
    rollout.rewards[:4, 0] = [1.0, 2.0, 3.0, 4.0]
    rollout.terminated[:] = False
    rollout.truncated[:] = False
    rollout.truncated[1] = True
    returns = generalized_advantages(rollout, 0.5, 1.0, use_critic=False)
    advantages, targets = returns.advantages, returns.targets
    assert advantages[:, 0].tolist() == [2.0, 2.0, 5.0, 4.0]
    np.testing.assert_array_equal(advantages, targets)
