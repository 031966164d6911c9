"""What was found lost and came after all is no loss: not to policies, nor to what pays them."""

from dataclasses import replace

import numpy as np
import pytest

from distrlcc.control.windows import WindowControl
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS, LinkView, RewardConfig
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.types import IntervalStats


def steps(lost: float, spurious: float) -> list[IntervalStats]:
    """Return the steps of a flow, the later ones with losses."""
    simulator = Simulator(1, with_ewmas=True)
    simulator.load(0, Scenario("plain", Link(rate_mbps=12.0), (Flow("cubic"),)))
    seen = []
    for number in range(40):
        simulator.advance(30_000_000)
        more = {} if number < 20 else {"lost": np.array([lost]), "spurious": np.array([spurious])}
        seen.append(replace(simulator.stats(), **more))
    return seen


WITHOUT, UNDONE, LOST = steps(0, 0), steps(7, 7), steps(7, 0)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_no_policy_sees_it(name: str) -> None:
    def seen(given: list[IntervalStats]) -> list[list[float]]:
        space = OBSERVATIONS[name](1)
        return [space.observe(stats)[0].tolist() for stats in given]

    assert seen(UNDONE) == seen(WITHOUT)


@pytest.mark.parametrize("name", REWARDS)
def test_nobody_is_paid_less(name: str) -> None:
    one = np.ones(1)
    view = LinkView(capacity=30 * one, used=29 * one, mean_rate=1e3 * one, base_rtt=0.041 * one)

    def paid(given: list[IntervalStats]) -> list[float]:
        return [float(REWARDS[name](stats, view, RewardConfig())[0]) for stats in given]

    assert paid(UNDONE) == paid(WITHOUT)
    assert name == "mvfst" or paid(LOST) != paid(WITHOUT)


def test_no_guard_counts_it() -> None:
    def rows(given: list[IntervalStats]) -> list[list[float]]:
        windows = WindowControl(1, 1.0, 0.02, held=0.004)
        found = []
        for stats in given:
            windows.observe(stats)
            found.append(windows.state[0].tolist())
        return found

    assert rows(UNDONE) == rows(WITHOUT) != rows(LOST)
