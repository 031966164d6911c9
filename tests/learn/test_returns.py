"""Advantages and targets by hand, and against the papers' sums written out."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distrlcc.learn.returns import vtrace
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec
from tests.learn.toys import make_spec

STEPS, COUNT = 25, 6


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
    rho, c = np.minimum(bounds[0], ratios), lambda_ * np.minimum(bounds[1], ratios)
    rewards, terminated, truncated, finals = (
        getattr(rollout, name)[:STEPS].astype(np.float64)
        for name in ("rewards", "terminated", "truncated", "final_values")
    )
    following = np.where(truncated, finals, np.vstack([values[1:], rollout.last_values[None]]))
    following[terminated > 0] = 0.0
    ends = (terminated + truncated + (np.arange(STEPS) == STEPS - 1)[:, None]) > 0
    errors = rho * (rewards + gamma * following - values)
    targets = values.astype(np.float64)
    for s, n in np.ndindex(STEPS, COUNT):
        for t in range(s, s + int(ends[s:, n].argmax()) + 1):
            targets[s, n] += gamma ** (t - s) * np.prod(c[s:t, n]) * errors[t, n]
    later = following + np.where(ends, 0.0, lambda_ * (np.roll(targets, -1, axis=0) - following))
    return rho * (rewards + gamma * later - values), targets


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.8), (0.99, 1.0), (0.5, 0.0), (0.0, 0.9)])
@pytest.mark.parametrize("bounds", [None, (1.0, 1.0), (2.0, 0.7), (100.0, 100.0)])
def test_equals_the_double_sum(
    gamma: float, lambda_: float, bounds: tuple[float, float] | None
) -> None:
    rollout, logp, values = _random_rollout(make_spec())
    if bounds is None:  # without lag these are generalised advantages
        logp, values, bounds = rollout.logp[:STEPS], rollout.values[:STEPS], (1.0, 1.0)
    ratios = np.exp(logp.astype(np.float64) - rollout.logp[:STEPS])
    advantages, targets = _double_sum(rollout, ratios, values, gamma, lambda_, bounds)
    found = vtrace(rollout, logp, values, gamma, lambda_, rho_bound=bounds[0], c_bound=bounds[1])
    np.testing.assert_allclose(found.advantages, advantages, atol=2e-5)
    np.testing.assert_allclose(found.targets, targets, atol=2e-5)
    np.testing.assert_allclose(found.residuals, targets - values, atol=2e-5)
    np.testing.assert_allclose(found.rho, np.minimum(ratios, bounds[0]), rtol=1e-5)
    assert found.clipped.mean() == np.mean(ratios > bounds[0])


def test_ratios_beyond_all_bounds_stay_finite() -> None:
    rollout, _, values = _random_rollout(make_spec())
    rollout.logp[:] = np.where(np.arange(COUNT) % 2, -500.0, 500.0)
    found = vtrace(rollout, np.zeros_like(values), values, 0.9, 0.9, rho_bound=3.0)
    np.testing.assert_allclose(found.rho[0], [0.0, 3.0] * 3, rtol=1e-6)
    assert np.isfinite(found.advantages).all()


def test_only_termination_is_not_bootstrapped() -> None:
    rollout = Rollout.allocate(make_spec(), 1, 4)
    rollout.steps = 1
    rollout.rewards[:], rollout.values[:], rollout.last_values[:] = 1.0, 2.0, 6.0
    rollout.terminated[:], rollout.truncated[:] = [0, 0, 1, 1], [0, 1, 0, 1]
    rollout.final_values[:] = 10.0 * rollout.truncated
    advantages = vtrace(rollout, rollout.logp, rollout.values, 0.5, 0.95).advantages
    assert advantages.tolist() == [[1.0 + 0.5 * 6.0 - 2.0, 1.0 + 0.5 * 10.0 - 2.0, -1.0, -1.0]]


def test_without_critic_returns_by_hand() -> None:
    rollout = Rollout.allocate(make_spec(), 4, 1)
    rollout.steps = 4
    rollout.rewards[:4, 0] = [1.0, 2.0, 3.0, 4.0]
    rollout.truncated[1] = True
    returns = vtrace(rollout, rollout.logp, rollout.values, 0.5, 1.0, use_critic=False)
    advantages, targets = returns.advantages, returns.targets
    assert advantages[:, 0].tolist() == [2.0, 2.0, 5.0, 4.0]
    np.testing.assert_array_equal(advantages, targets)
