"""Rewards by hand, and what a preference does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import (
    FREE_WINDOW,
    NEAR_WINDOW,
    REWARDS,
    LinkView,
    RewardConfig,
    distrlcc,
    outcome,
    preferred,
    with_window,
)
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.runs.collect_data import CollectConfig
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.suites import best_cwnd, load_suite, mean_rate_mbps, scenario_by_id, with_scheme
from distrlcc.types import IntervalStats
from tests.env.steps import interval_stats

COUNTS = {"duration": 0.01, "sent": 10, "acked": 8, "lost": 2, "cwnd": 20}
STATS = interval_stats(rtt_sum=8 * 0.06, rtt_max=0.07, rtt_last=0.06, min_rtt=0.04, **COUNTS)
LINK = LinkView(np.array([10.0]), np.array([9.0]), np.array([1000.0]), np.array([0.04]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("distrlcc", 1 - 0.1 - 0.5 * 0.5 - 10 * 0.2),
        ("aurora", 1e-3 * (10 * 800 - 1000 * 0.06 - 2000 * 0.2)),
        ("genet", 1e-3 * (500 * 0.8 - 1000 * 0.06 - 2000 * 0.2)),
        ("mvfst", np.log(1e-5 + 800 * 1504e-6) - 0.2 * np.log(1e-5 + 30.0)),
        ("orca", (8 - 10) / 0.01 / 1000 * min(1, 1.25 * 0.04 / 0.06)),
    ],
)
def test_a_reward_is_its_papers_formula(name: str, expected: float) -> None:
    assert REWARDS[name](STATS, LINK, RewardConfig(name))[0] == pytest.approx(expected)


def test_a_window_that_does_not_fit_costs_more_steeply_near_the_fit() -> None:
    cases = [  # in flight, capacity, the logarithm that is paid for
        (40.0, 10.0, 0.0),  # 1000 packets/s for 40 ms
        (41.0, 10.0, 0.0),
        (80.0, 10.0, np.log(2)),
        (10.0, 10.0, np.log(4)),
        (0.0, 10.0, np.log(16)),  # bounded
        (8000.0, 10.0, np.log(16)),
        (4.0, 0.0, np.log(4)),  # a packet at least fits
    ]
    inflight, capacity, log = np.array(cases).T
    stats = interval_stats(len(cases), duration=0.01, inflight=inflight)
    link = replace(LINK, capacity=capacity)
    paid = with_window(np.full(len(cases), 0.7), stats, link, RewardConfig(window_weight=0.5))
    expected = 0.7 - 0.5 * np.log1p(np.maximum(log - FREE_WINDOW, 0.0) / NEAR_WINDOW)
    assert paid == pytest.approx(expected)


def test_beside_a_schemes_flow_a_share_of_the_price_of_delay_is_paid() -> None:
    config = RewardConfig(delay_weight=0.8, beside_weight=0.25)
    for schemes, price in ((0.0, 0.8), (2.0, 0.2)):  # of a queue of half a round trip
        link = replace(LINK, schemes=np.array([schemes]))
        paid = REWARDS["distrlcc"](STATS, link, config)
        assert paid[0] == pytest.approx(1 - 0.1 - price * 0.5 - 10 * 0.2)
    with pytest.raises(ConfigError, match="beside_weight"):
        RewardConfig(beside_weight=0.5, delay_weights=(0.1, 1.0))


def test_an_environment_takes_the_price_of_its_window_off_its_reward() -> None:
    rewards = []
    for weight in (0.0, 2.0):
        config = EnvConfig(reward=RewardConfig(window_weight=weight))
        batch = LinkBatch(1, config)
        batch.load(0, with_scheme(scenario_by_id("random/3"), "agent"))
        for _ in range(20):
            _, reward = batch.step(np.array([2]))
        rewards.append(reward)
    taken = with_window(np.zeros(1), batch.newest, batch.view(), RewardConfig(window_weight=2.0))
    assert taken[0] < -0.1
    assert rewards[1] == pytest.approx(rewards[0] + taken)


def _waits(draws: Any) -> float:
    """Return how long packets wait in the mean, ms, one a millisecond, none of which overtakes."""
    times = np.arange(100_000.0)
    return float((np.maximum.accumulate(times + draws(len(times))) - times).mean())


def test_a_queue_has_a_price_and_what_shaped_acks_add_has_none() -> None:
    """A packet a millisecond; a round trip without a queue takes 41 ms and what shaping adds."""
    rng = np.random.default_rng(0)
    uniform = _waits(lambda n: rng.uniform(0.0, 20.0, n))
    normal = _waits(lambda n: rng.uniform(0.0, 20.0, (4, n)).mean(axis=0))
    exponential = _waits(lambda n: rng.exponential(20.0 / 8 / np.log(2), n))
    shaped: list[tuple[dict[str, Any], float]] = [
        ({}, 0.0),
        ({"ack_tick_ms": 20.0}, 20.0),
        ({"delayed_acks": True}, 1.0),
        ({"ack_jitter_ms": 20.0}, uniform),
        ({"jitter_ms": 20.0}, uniform),
        ({"ack_jitter_ms": 20.0, "ack_jitter_kind": "normal"}, normal),
        ({"ack_jitter_ms": 20.0, "ack_jitter_kind": "exponential"}, exponential),
    ]
    base = np.array([41.0 + added for _, added in shaped])
    for queue in (0.0, 20.0):
        batch = LinkBatch(len(shaped), EnvConfig())
        for n, (kind, _) in enumerate(shaped):
            link = Link(rate_mbps=12.032, delay_ms=20.0, **kind)
            batch.load(n, Scenario("shaped", link, (Flow(cwnd=round(base[n] + queue)),)))
        delays = []
        for _ in range(300):
            batch.step(np.full(len(shaped), 2))
            delays.append(outcome(batch.newest, batch.view())[1])
        delay = np.mean(delays[100:], axis=0)
        # A single step of a jittering path may lie above the mean.
        assert delay == pytest.approx(queue / base, abs=0.015 if queue else 0.15)


@pytest.mark.parametrize("name", REWARDS)
def test_a_silent_step_has_a_finite_reward(name: str) -> None:
    silent = interval_stats(duration=0.01)
    link = LinkView(np.zeros(1), np.zeros(1), np.array([1000.0]), np.array([0.04]))
    assert np.isfinite(REWARDS[name](silent, link, RewardConfig(name)))


N = 6
CONFIG = EnvConfig(episode_s=0.3, reward=RewardConfig(delay_weights=(0.05, 5.0)))
PLAIN = replace(CONFIG, reward=RewardConfig())


def test_the_reward_has_each_rows_own_price() -> None:
    rng = np.random.default_rng(0)
    stats = IntervalStats(*rng.random((len(IntervalStats.names()), 5)))
    link = LinkView(*(0.1 + rng.random((4, 5))))
    preference = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    prices = [0.05, 0.05 * 10**0.5, 0.5, 0.5 * 10**0.5, 5.0]
    paid = preferred(stats, link, CONFIG.reward, preference)
    for n, price in enumerate(prices):
        own = distrlcc(stats, link, RewardConfig(delay_weight=price))[n] / (1 + price)
        assert paid[n] == pytest.approx(own, rel=1e-12)


def test_it_is_the_last_element_from_an_episodes_first_observation_on() -> None:
    env, plain = LinkVectorEnv(N, CONFIG, seed=1), LinkVectorEnv(N, PLAIN, seed=1)
    seen, (first, _) = env.reset()[0], plain.reset()
    assert env.batch.observation_size == plain.batch.observation_size + 1
    np.testing.assert_array_equal(seen[:, :-1], first)
    preference, drawn = seen[:, -1].copy(), [seen[:, -1].copy()]
    for t in range(90):
        actions = (np.arange(N) + t) % 6
        seen, _, _, truncated, info = env.step(actions)
        other, _, _, ended, _ = plain.step(actions)
        np.testing.assert_array_equal(seen[:, :-1], other)  # the links are the same
        np.testing.assert_array_equal(truncated, ended)
        if truncated.any():  # it stays the episode's until its end
            np.testing.assert_array_equal(info["final_obs"][:, -1], preference)
        np.testing.assert_array_equal(seen[~truncated, -1], preference[~truncated])
        preference = seen[:, -1].copy()
        drawn.append(preference)
    values = np.unique(drawn)
    assert len(values) >= 3 * N
    assert 0.0 <= values.min() < 0.2
    assert 0.8 < values.max() <= 1.0


def test_an_expert_has_no_preference() -> None:
    for name in ("imitation", "gail"):
        config = recipe(name)
        with pytest.raises(ConfigError, match="has no preference"):
            replace(config, env=replace(config.env, reward=CONFIG.reward))
    with pytest.raises(ConfigError, match="has no preference"):
        CollectConfig("oracle", env=CONFIG)


def test_the_best_window_is_the_one_found_else_the_least_that_fills_the_mean_rate() -> None:
    scenario = load_suite("indigo/1").scenario("test", 0)
    assert best_cwnd(scenario) == 42
    assert with_scheme(scenario, "best-cwnd").flows[0].cwnd == 42
    link = Link(rate_mbps=10, delay_ms=20, changes=(Change(5.0, rate_mbps=30),))
    scenario = Scenario("x", link, duration_s=10.0)
    assert mean_rate_mbps(scenario) == pytest.approx(20.0)
    assert best_cwnd(scenario) == 1 + np.ceil(bdp_packets(20.0, 40.0))


def test_labels_hold_one_window_on_a_link_of_chance() -> None:
    config = EnvConfig(suites=("indigo/2",), observation="indigo", action="indigo", stagger=False)
    env = LinkVectorEnv(1, config, split="test", seed=0)
    _, info = env.reset()
    windows = []
    for _ in range(300):
        _, _, _, _, info = env.step(info["expert_action"])
        windows.append(float(info["cwnd"][0]))
    # 71 is the best; actions lead to 70 and 80 by tens from 10.
    assert set(windows[10:]) == {70.0}
    resumed = LinkVectorEnv(1, config, split="test", seed=0)
    resumed.load_state_dict(env.state_dict())
    steps = [e.step(info["expert_action"])[4]["expert_action"] for e in (env, resumed)]
    np.testing.assert_array_equal(*steps)
