"""Weights that are averaged before they are scored and kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distrlcc.config import override
from distrlcc.recipes.registry import recipe
from distrlcc.runs.checkpoint import pack, unpack
from distrlcc.runs.run_state import RunState, env_run
from distrlcc.runs.train import iterate
from tests.trees import same

UPDATE = 8 * 16
SMALL = """num_envs=8 env.episode_s=0.5 network.hidden=[8] ppo.rollout_length=16
    ppo.minibatch_size=64 held_out.links=2 held_out.seconds=0.3"""


def _state(*changes: str) -> RunState:
    return env_run(override(recipe("quickstart"), [*SMALL.split(), *changes]))


def _averaging(*changes: str) -> RunState:
    return _state(f"held_out.average_steps={4 * UPDATE}", *changes)


def test_what_is_scored_and_kept_is_the_mean_of_the_last_steps_weights() -> None:
    state, resumed = _averaging("held_out.keep=newest"), _averaging("held_out.keep=newest")
    mean: dict[str, Any] = {}
    for part in (1, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4):
        iterate(state)
        newest = state.learner.weights().arrays
        mean = {n: (1 - part) * mean.get(n, 0.0) + part * array for n, array in newest.items()}
    kept = state.weights_to_keep().arrays
    assert kept.keys() == newest.keys()
    for name, array in kept.items():
        np.testing.assert_allclose(array, mean[name], rtol=1e-4, atol=1e-6)
    assert any((array != newest[name]).any() for name, array in kept.items())
    found = state.score()
    assert found["held_out_reward_sample"] == state.counters.best_score
    same(kept, state.policy().arrays)
    # A resumed run goes on with it, bit for bit.
    resumed.load_state_dict(unpack(pack(state.state_dict())))
    for each in (state, resumed):
        iterate(each)
    same(state.weights_to_keep().arrays, resumed.weights_to_keep().arrays)


def test_without_a_length_the_newest_weights_are_kept() -> None:
    state = _state()
    iterate(state)
    same(state.weights_to_keep().arrays, state.learner.weights().arrays)


def test_after_a_restore_the_mean_begins_anew() -> None:
    blows_up = f"ppo.lr_schedule=[[0,1e-3],[{4 * UPDATE},1e-3],[{4 * UPDATE + 1},5.0]]"
    state = _averaging(blows_up, "alarm.patience=2", "alarm.keep_every=2")
    for _ in range(14):
        iterate(state)
        if state.restored:
            break
    else:
        pytest.fail("it was never restored")
    same(state.weights_to_keep().arrays, state.learner.weights().arrays)
