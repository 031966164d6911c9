"""Rewards of a step computed by hand."""

from dataclasses import replace

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
    with_window,
)
from distrlcc.sim.suites import scenario_by_id, with_scheme
from distrlcc.types import IntervalStats


def _stats(**values: float) -> IntervalStats:
    filled = dict.fromkeys(IntervalStats.names(), 0.0) | values
    return IntervalStats(**{k: np.array([v]) for k, v in filled.items()})


STATS = _stats(
    duration=0.01, sent=10, acked=8, lost=2, rtt_sum=8 * 0.06, rtt_max=0.07, rtt_last=0.06,
    min_rtt=0.04, cwnd=20,
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("inflight", "capacity", "flows", "log"),
    [
        (40.0, 10.0, None, 0.0),  # 1000 packets/s for 40 ms
        (41.0, 10.0, None, 0.0),
        (80.0, 10.0, None, np.log(2)),
        (10.0, 10.0, None, np.log(4)),
        (20.0, 10.0, 2.0, 0.0),
        (40.0, 10.0, 4.0, np.log(4)),
        (0.0, 10.0, None, np.log(16)),  # bounded
        (8000.0, 10.0, None, np.log(16)),
        (4.0, 0.0, None, np.log(4)),  # a packet at least fits
    ],
)
def test_a_window_that_does_not_fit_costs_more_steeply_near_the_fit(
    inflight: float, capacity: float, flows: float | None, log: float
) -> None:
    stats = _stats(duration=0.01, inflight=inflight)
    link = replace(
        LINK, capacity=np.array([capacity]), flows=None if flows is None else np.array([flows])
    )
    paid = with_window(np.array([0.7]), stats, link, RewardConfig(window_weight=0.5))
    assert paid[0] == pytest.approx(0.7 - 0.5 * np.log1p(max(log - FREE_WINDOW, 0.0) / NEAR_WINDOW))


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


@pytest.mark.parametrize("name", REWARDS)
def test_a_silent_step_has_a_finite_reward(name: str) -> None:
    silent = _stats(duration=0.01)
    link = LinkView(np.zeros(1), np.zeros(1), np.array([1000.0]), np.array([0.04]))
    assert np.isfinite(REWARDS[name](silent, link, RewardConfig(name)))
