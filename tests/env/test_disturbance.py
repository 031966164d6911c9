"""Late actions and jitter: what agents measure, and that the links know nothing of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.env.config import EnvConfig
from distrlcc.env.disturbance import Disturbance
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.ppo import PPO
from distrlcc.policy.spec import PolicySpec
from distrlcc.recipes.registry import recipe
from distrlcc.runs.held_out import HeldOut
from distrlcc.runs.run_config import HeldOutConfig
from tests.env.steps import interval_stats, steps

PLAIN = EnvConfig(episode_s=0.6, suites=("random", "dynamic"))


def _roll(config: EnvConfig) -> list[Any]:
    env = LinkVectorEnv(6, config, seed=4)
    env.reset()
    return steps(env, 0, 100)


def test_off_it_changes_nothing_and_on_it_does() -> None:
    assert LinkVectorEnv(2, PLAIN).batch.disturbance is None
    late = _roll(replace(PLAIN, action_delay_steps=3))
    assert any((a[0] != b[0]).any() for a, b in zip(_roll(PLAIN), late, strict=True))


def test_jitter_moves_what_is_measured_alone() -> None:
    plain, noisy = _roll(PLAIN), _roll(replace(PLAIN, jitter_ms=4.0))
    moved = 0
    for (seen, paid, *_), (measured, paid_too, *_) in zip(plain, noisy, strict=True):
        np.testing.assert_array_equal(paid, paid_too)  # the link's truth
        np.testing.assert_array_equal(seen[:, -6:], measured[:, -6:])
        moved += (seen != measured).any()
    assert moved > 50


def _begun(n: int, delay: int, jitter_ms: float) -> Disturbance:
    disturbance = Disturbance(np.arange(n), delay, jitter_ms)
    disturbance.begin(np.arange(n), np.uint64(5), np.zeros(n, np.int64))
    return disturbance


def test_actions_take_effect_as_much_later_as_drawn() -> None:
    n = 64
    late = _begun(n, 3, 0.0)
    stats = interval_stats(n, duration=1.0)
    delays = np.full(n, -1)
    for t in range(12):
        taken, due = late.due(np.full(n, 10 + t))
        first = due & (delays < 0)
        delays[first] = t
        np.testing.assert_array_equal(taken[due], (10 + t - delays)[due])
        late.measured(stats)
    assert sorted(set(delays)) == [0, 1, 2, 3]


def test_measurements_add_up_and_are_never_too_short() -> None:
    n, count = 32, 400
    rng = np.random.default_rng(0)
    noise = _begun(n, 0, 8.0)
    acked = rng.integers(0, 9, (count, n)).astype(float)
    low = 0.02 + 0.01 * rng.random((count, n))
    least, total, waited = np.full(n, np.inf), np.zeros(n), np.zeros(n)
    for t in range(count):
        sees = acked[t] > 0
        mean = np.where(sees, low[t] + 0.002, 0.0)
        seen = {"rtt_sum": mean * acked[t], "rtt_min": np.where(sees, low[t], 0.0)}
        seen |= {"rtt_max": np.where(sees, low[t] + 0.004, 0.0), "min_rtt": low[t]}
        seen |= {"rtt_last": low[t], "acked": acked[t]}
        stats = interval_stats(n, duration=0.01, inflight=20.0, **seen)
        got = noise.measured(stats)
        total += got.acked
        late = acked[: t + 1].sum(axis=0) - total
        assert (late >= 0).all()  # an acknowledgement comes once, at most a step late
        assert (late <= acked[t]).all()
        np.testing.assert_array_equal(got.inflight, 20.0 + late)
        some = got.acked > 0
        average = got.rtt_sum / np.maximum(got.acked, 1)
        assert (average >= got.rtt_min - 1e-12)[some].all()
        assert (average <= got.rtt_max + 1e-12)[some].all()
        assert (got.rtt_min >= 0.02)[some].all()
        least = np.where(some, np.minimum(least, got.rtt_min), least)
        np.testing.assert_array_equal(got.min_rtt[some], least[some])
        waited += np.where(some, average - 0.027, 0.0)
    mean_wait = waited / count
    assert mean_wait.max() < 0.012  # the bound's mean is 8 ms, of the others less
    assert np.ptp(mean_wait) > 0.003  # episodes differ


def test_held_out_links_are_not_disturbed() -> None:
    few = replace(recipe("quickstart"), held_out=HeldOutConfig(links=3, seconds=0.3))
    noisy = replace(few, env=replace(few.env, action_delay_steps=2, jitter_ms=3.0))
    spec = PolicySpec("scale-free", 20, "multiplicative", "discrete", 6)
    weights = PPO(PPOConfig(), spec).weights()
    assert HeldOut(noisy, spec).score(weights) == HeldOut(few, spec).score(weights)


def test_an_expert_is_not_followed_late() -> None:
    config = recipe("imitation")
    with pytest.raises(ConfigError, match="action_delay_steps"):
        replace(config, env=replace(config.env, action_delay_steps=1))
    replace(config, env=replace(config.env, jitter_ms=1.0))
