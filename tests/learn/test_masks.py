"""Steps without an agent: whatever stands in them, what is learned is what is learned without."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from distrlcc.learn.config import DaggerConfig, PPOConfig
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec

T, N, CUT, L = 12, 5, 6, 4


def _dense(spec: PolicySpec) -> Rollout:
    """Every step active; each column's episode is cut off in the middle, and another begins."""
    rng = np.random.default_rng(3)
    rollout = Rollout.allocate(spec, T, N, L)
    for name in ("obs", "rewards", "values", "last_values", "states"):
        array = getattr(rollout, name)
        array[:] = rng.normal(1.0, 2.0, array.shape)
    rollout.actions[:] = rng.integers(0, 3, (T, N))
    rollout.expert_actions[:] = rng.integers(0, 3, (T, N))
    rollout.logp[:] = np.log(rng.uniform(0.2, 0.9, (T, N)))
    rollout.truncated[CUT - 1] = rollout.starts[CUT] = True
    rollout.final_values[CUT - 1] = rng.normal(size=N)
    rollout.steps = T
    return rollout


def _wide(dense: Rollout, spec: PolicySpec) -> Rollout:
    """The same steps in twice as many columns: the first episodes leave, the second ones join."""
    rng = np.random.default_rng(4)
    rollout = Rollout.allocate(spec, T, 2 * N, L)
    for name in ("obs", "rewards", "values", "last_values", "states", "logp", "final_values"):
        array = getattr(rollout, name)
        array[:] = rng.normal(-50.0, 300.0, array.shape)
    rollout.active[:] = False
    for rows, columns in ((slice(0, CUT), slice(0, N)), (slice(CUT, T), slice(N, 2 * N))):
        for name in (
            "obs",
            "rewards",
            "values",
            "logp",
            "actions",
            "expert_actions",
            "truncated",
            "starts",
            "final_values",
        ):
            getattr(rollout, name)[rows, columns] = getattr(dense, name)[rows]
        rollout.active[rows, columns] = True
        if spec.state_size:
            kept = slice(rows.start // L, -(-rows.stop // L))
            rollout.states[kept, :, columns] = dense.states[kept]
    rollout.last_values[N:] = dense.last_values
    rollout.steps = T
    return rollout


def _learned(learner: PPO | Dagger, rollout: Rollout) -> tuple[dict[str, float], dict[str, Any]]:
    metrics = learner.update(rollout)
    return metrics, learner.weights().arrays


@pytest.mark.parametrize("network", [{}, {"kind": "lstm", "hidden": (8,)}])
@pytest.mark.parametrize("changes", [{}, {"use_vtrace": True}, {"use_kl_loss": True}])
def test_ppo_learns_the_same(make_spec: Any, network: Any, changes: Any) -> None:
    spec = make_spec(**network)
    # One minibatch: then it is of no matter which samples are dealt to which.
    config = PPOConfig(minibatch_size=1000, num_epochs=3, sequence_length=L, **changes)
    dense = _dense(spec)
    wide = _wide(dense, spec)
    assert wide.samples == dense.samples == T * N
    expected, weights = _learned(PPO(config, spec), dense)
    metrics, learned = _learned(PPO(config, spec), wide)
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for name, value in weights.items():
        np.testing.assert_allclose(learned[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("network", [{}, {"kind": "lstm", "hidden": (8,)}])
def test_dagger_learns_the_same(make_spec: Any, network: Any) -> None:
    spec = make_spec(**network)
    config = DaggerConfig(minibatch_size=1000, num_epochs=1, sequence_length=L)
    dense = _dense(spec)
    expected, weights = _learned(Dagger(config, spec), dense)
    metrics, learned = _learned(Dagger(config, spec), _wide(dense, spec))
    for name in ("imitation_loss", "imitation_accuracy"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4)
    for name, value in weights.items():
        np.testing.assert_allclose(learned[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_minibatches_without_an_agent_are_steps_of_no_weight(make_spec: Any) -> None:
    spec = make_spec()
    rollout = _wide(_dense(spec), spec)
    rollout.active[:] = False
    rollout.active[0, 0] = True
    learner = PPO(PPOConfig(minibatch_size=1, num_epochs=1), spec)
    metrics = learner.update(dataclasses.replace(rollout))
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(array).all() for array in learner.weights().arrays.values())
