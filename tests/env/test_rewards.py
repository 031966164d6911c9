"""Rewards of a step computed by hand."""

import numpy as np
import pytest

from distrlcc.env.rewards import REWARDS, LinkView, RewardConfig
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


@pytest.mark.parametrize("name", REWARDS)
def test_a_silent_step_has_a_finite_reward(name: str) -> None:
    silent = _stats(duration=0.01)
    link = LinkView(np.zeros(1), np.zeros(1), np.array([1000.0]), np.array([0.04]))
    assert np.isfinite(REWARDS[name](silent, link, RewardConfig(name)))
