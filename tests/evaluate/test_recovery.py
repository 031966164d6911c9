import math

import numpy as np
import pytest

from distrlcc.evaluate.contender import Contender, contender_from_scheme
from distrlcc.evaluate.recovery import first_fit, recovery_scores, recovery_times
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.suites import load_suite


def test_the_oracle_is_back_within_two_round_trips_and_cubic_is_not() -> None:
    scenarios = load_suite("dynamic").scenarios("test", 8)
    changes = sum(
        change.at_s < scenario.duration_s
        for scenario in scenarios
        for change in scenario.link.changes
    )
    oracle = recovery_times(contender_from_scheme("oracle"), scenarios)
    assert len(oracle) == changes
    assert np.median(oracle) < 2.0
    cubic = recovery_scores(contender_from_scheme("cubic"), scenarios)
    assert cubic["recovered"] < 0.3


def test_a_window_that_fits_one_rate_never_fits_the_other() -> None:
    window = round(bdp_packets(12.0, 41.0))
    link = Link(
        rate_mbps=24, delay_ms=20, changes=(Change(2.0, rate_mbps=12), Change(4.0, rate_mbps=24))
    )
    scenario = Scenario("x", link, flows=(Flow("agent", cwnd=window),), duration_s=6.0)
    down, up = recovery_times(Contender("fixed"), [scenario])
    assert down < 1.0  # nothing to do: what was in flight fits now
    assert math.isinf(up)


@pytest.mark.parametrize(
    ("inflight", "expected"),
    [
        ([20, 10, 10, 10, 10], 0.02),
        ([20, 10, 20, 10, 10], 0.04),  # it only passed by
        ([20, 20, 20, 20, 10], math.inf),  # the next change came first
        ([9, 11, 10, 9, 11], 0.01),
    ],
)
def test_what_passes_by_is_not_back(inflight: list[float], expected: float) -> None:
    ages = 0.01 * np.arange(1, 6)
    assert first_fit(ages, np.array(inflight, float), 10.0, 0.01) == pytest.approx(expected)
