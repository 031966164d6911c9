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
from tests.learn.toys import make_spec, same_weights

T, N, CUT, L = 12, 5, 6, 4
ROWS = ("obs", "rewards", "values", "logp", "final_values")
LSTM = {"kind": "lstm", "hidden": (8,)}


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
    for name in (*ROWS, "last_values", "states"):
        array = getattr(rollout, name)
        array[:] = rng.normal(-50.0, 300.0, array.shape)
    rollout.active[:] = False
    for rows, columns in ((slice(0, CUT), slice(0, N)), (slice(CUT, T), slice(N, 2 * N))):
        for name in (*ROWS, "actions", "expert_actions", "truncated", "starts"):
            getattr(rollout, name)[rows, columns] = getattr(dense, name)[rows]
        rollout.active[rows, columns] = True
        if spec.state_size:
            kept = slice(rows.start // L, -(-rows.stop // L))
            rollout.states[kept, :, columns] = dense.states[kept]
    rollout.last_values[N:] = dense.last_values
    rollout.steps = T
    return rollout


FEW: Any = {"minibatch_size": 1000, "sequence_length": L}
"""One minibatch: then it is of no matter which samples are dealt to which."""
LEARNERS = {
    "ppo": (PPO, PPOConfig(num_epochs=3, **FEW)),
    "vtrace": (PPO, PPOConfig(num_epochs=3, use_vtrace=True, **FEW)),
    "kl": (PPO, PPOConfig(num_epochs=3, use_kl_loss=True, **FEW)),
    "dagger": (Dagger, DaggerConfig(num_epochs=1, **FEW)),
}


@pytest.mark.parametrize("network", [{}, LSTM])
@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_learned_is_the_same(network: Any, name: str) -> None:
    spec, (kind, config) = make_spec(**network), LEARNERS[name]
    dense = _dense(spec)
    wide = _wide(dense, spec)
    assert wide.samples == dense.samples == T * N
    one, other = kind(config, spec), kind(config, spec)
    expected, metrics = one.update(dense), other.update(wide)
    for key in ("imitation_loss", "imitation_accuracy") if name == "dagger" else expected:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    same_weights(one.weights(), other.weights(), rtol=1e-4, atol=1e-5)


def test_minibatches_without_an_agent_are_steps_of_no_weight() -> None:
    spec = make_spec()
    rollout = _wide(_dense(spec), spec)
    rollout.active[:] = False
    rollout.active[0, 0] = True
    learner = PPO(PPOConfig(minibatch_size=1, num_epochs=1), spec)
    metrics = learner.update(dataclasses.replace(rollout))
    assert all(np.isfinite(value) for value in metrics.values())
    weights = learner.weights()
    assert all(np.isfinite(array).all() for array in weights.arrays.values())
    learner.optimizer.step(None, 0, 1e-3, None)
    same_weights(weights, learner.weights())
