"""Late actions, jitter, cuts and the kernel: what agents measure, and what links have of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.config import from_toml, override, to_toml
from distrlcc.env.batch import LinkBatch
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
from distrlcc.sim.scenario import Link, Scenario
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
    old = to_toml(PLAIN).replace("kernel = 0.0\n", "")
    assert from_toml(EnvConfig, old) == PLAIN


def test_jitter_moves_what_is_measured_alone() -> None:
    plain, noisy = _roll(PLAIN), _roll(replace(PLAIN, jitter_ms=4.0))
    moved = 0
    for (seen, paid, *_), (measured, paid_too, *_) in zip(plain, noisy, strict=True):
        np.testing.assert_array_equal(paid, paid_too)  # the link's truth
        np.testing.assert_array_equal(seen[:, -6:], measured[:, -6:])
        moved += (seen != measured).any()
    assert moved > 50


def _begun(n: int, **changes: Any) -> Disturbance:
    disturbance = Disturbance(np.arange(n), EnvConfig(**changes))
    disturbance.begin(np.arange(n), np.uint64(5), np.zeros(n, np.int64))
    return disturbance


def test_actions_take_effect_as_much_later_as_drawn() -> None:
    n = 64
    late = _begun(n, action_delay_steps=3)
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
    noise = _begun(n, jitter_ms=8.0)
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


def test_the_kernels_receivers_acknowledge_pairs() -> None:
    batch = LinkBatch(1, EnvConfig(action="fine", kernel=True))
    batch.disturbance = _begun(1, kernel=True)
    batch.load(0, Scenario("slow", Link(rate_mbps=1.0, delay_ms=50.0, queue_packets=100)))
    acked = set()
    for _ in range(100):
        batch.step(np.array([4]))
        acked.add(float(batch.newest.acked[0]))
    assert acked == {0.0, 2.0}


def test_windows_in_the_kernel_are_whole_paced_and_not_below_four() -> None:
    kernel = _begun(3, kernel=True)
    chosen, held = np.array([[9.9, 2.2, 9.9], [0.0, 0.0, 500.0]]), np.full((2, 3), 7.0)
    # Before the first sample nothing is paced except what has a rate.
    expected = [[9.0, 4.0, 9.0], [0.0, 0.0, 500.0]]
    np.testing.assert_array_equal(kernel.in_force(chosen, held), expected)
    stats = interval_stats(3, duration=0.01, acked=np.array([2.0, 3.0, 2.0]), rtt_last=0.05)
    stats = replace(stats, rtt_sum=0.05 * stats.acked, rtt_min=np.full(3, 0.05))
    np.testing.assert_array_equal(kernel.measured(stats).cwnd, [9.9, 2.2, 9.9])
    expected = [[9.0, 4.0, 9.0], [1.25 * 9 / 0.05, 1.25 * 4 / 0.05, 500.0]]
    np.testing.assert_allclose(kernel.in_force(chosen, held), expected)


def test_in_the_kernel_actions_of_silent_steps_add_up_until_an_acknowledgement() -> None:
    # The first pair's second packet is acknowledged at 100 + 2 * 12.032 ms, in the 13th step.
    config = EnvConfig(action="fine", kernel=True)
    batch = LinkBatch(1, config)
    batch.disturbance = _begun(1, kernel=True)
    batch.load(0, Scenario("slow", Link(rate_mbps=1.0, delay_ms=50.0, queue_packets=100)))
    grow = np.array([6])
    for step in range(1, 14):
        batch.step(grow)
        # The first action is in force at once; seven more are kept, and others are not made up.
        assert batch.chosen()[0][0] == pytest.approx(10 * 1.1 ** min(step, 8))
        assert batch.held()[0][0] == 11.0
        assert batch.chosen_windows()[0] == batch.chosen()[0][0]
    batch.step(grow)
    assert batch.chosen()[0][0] == pytest.approx(10 * 1.1**9)
    assert batch.held()[0][0] == np.floor(10 * 1.1**9) == 23.0


def test_windows_are_cut_at_random_and_agents_see_it_at_once() -> None:
    n = 20_000
    cut = _begun(n, cuts_per_s=5.0)
    held = np.full(n, 80.0), np.full(n, 40.0)
    active = np.arange(n) < n // 2
    for _ in range(3):
        stats = interval_stats(n, duration=0.01, cwnd=80.0, pacing_rate=40.0)
        seen = cut.measured(stats, active)
        part = seen.cwnd / 80
        np.testing.assert_array_equal(seen.pacing_rate, 40.0)
        # The next action changes what is left.
        np.testing.assert_array_equal(cut.chosen(*held)[0], seen.cwnd)
        assert (part[~active] == 1).all()
        some = part[part < 1]
        assert 0.04 < len(some) / active.sum() < 0.06
        assert some.min() > 1 / 8
        assert 0.45 < (some < 8**-0.5).mean() < 0.55  # log-uniform
    # Never below the least window.
    cut.measured(interval_stats(n, duration=1.0), active)
    assert cut.chosen(np.full(n, 3.0), held[1])[0].min() == 2.0
    assert cut.chosen(np.full(n, 1.0), held[1])[0].min() == 1.0


@pytest.mark.parametrize("kernel", [0.0, 1.0])
def test_a_cut_window_is_held_from_the_next_step_or_acknowledgement_on(kernel: float) -> None:
    batch = LinkBatch(1, EnvConfig(action="fine", kernel=kernel, cuts_per_s=3.0))
    batch.disturbance = _begun(1, kernel=kernel, cuts_per_s=3.0)
    batch.load(0, Scenario("wide", Link(rate_mbps=50.0, delay_ms=20.0, queue_packets=100)))
    cuts, least = 0, 4.0 if kernel else 2.0
    for step in range(400):
        chosen, held = batch.chosen_windows()[0], batch.held()[0][0]
        silent = kernel and batch.disturbance.state_dict()["silent"][0]
        batch.step(np.array([6 if step < 30 else 4]))  # grows first
        if step >= 30:
            due = max(np.floor(chosen) if kernel else chosen, least)
            assert batch.held()[0][0] == (held if silent else due)
            cuts += batch.chosen_windows()[0] < chosen
    assert cuts >= 2
    assert batch.held()[0][0] == least


def test_held_out_links_are_not_disturbed() -> None:
    few = replace(recipe("quickstart"), held_out=HeldOutConfig(links=3, seconds=0.3))
    env = replace(few.env, action_delay_steps=2, jitter_ms=3.0, cuts_per_s=9.0, kernel=True)
    noisy = replace(few, env=env)
    spec = PolicySpec("scale-free", 20, "multiplicative", "discrete", 6)
    weights = PPO(PPOConfig(), spec).weights()
    assert HeldOut(noisy, spec).score(weights) == HeldOut(few, spec).score(weights)


@pytest.mark.slow
def test_a_second_scoring_is_as_the_first() -> None:
    suites = ["env.suites=['shared','random']", "env.suite_weights=[]", "env.agents=4"]
    config = override(recipe("quickstart"), suites)
    config = replace(config, held_out=HeldOutConfig(links=3, seconds=6.0))
    spec = PolicySpec("scale-free", 20, "multiplicative", "discrete", 6)
    held_out = HeldOut(config, spec)
    one, other = (PPO(PPOConfig(), spec, seed).weights() for seed in (1, 2))
    first = held_out.score(one)
    assert held_out.score(other) != first
    assert held_out.score(one) == first


def test_an_expert_is_not_followed_late() -> None:
    config = recipe("imitation")
    with pytest.raises(ConfigError, match="action_delay_steps"):
        replace(config, env=replace(config.env, action_delay_steps=1))
    replace(config, env=replace(config.env, jitter_ms=1.0))
