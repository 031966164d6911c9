import numpy as np
import pytest

from distrlcc.control import vegas
from distrlcc.control.reno import SSTHRESH
from tests.control.drive import Driver, linear, run


def at_the_start_of_a_round(window: float) -> Driver:
    flow = linear("vegas", window)
    flow.state[vegas.ROUND_END] = flow.sent
    flow.state[vegas.ROUND_RTT] = np.inf
    return flow


def test_slow_start_ends_with_gamma_packets_in_the_queue() -> None:
    flow = Driver("vegas")
    for _ in range(3):
        flow.round(rtt_ms=100)
    assert flow.cwnd == 40
    flow.round(rtt_ms=120)
    flow.ack(rtt_ms=120)
    assert flow.cwnd == pytest.approx(40 * 100 / 120 + 1)
    assert flow.cwnd >= flow.state[SSTHRESH]


@pytest.mark.parametrize(
    ("queued", "change"), [(0.0, 1), (1.9, 1), (2.1, 0), (3.9, 0), (4.1, -1), (20.0, -1)]
)
def test_linear_mode_keeps_between_alpha_and_beta(queued: float, change: float) -> None:
    flow = at_the_start_of_a_round(50)
    flow.round(rtt_ms=100 * 50 / (50 - queued))
    assert flow.cwnd == 50
    flow.ack(rtt_ms=1000)
    assert flow.cwnd == 50 + change


def test_the_least_rtt_of_the_round_counts() -> None:
    flow = at_the_start_of_a_round(50)
    flow.ack(rtt_ms=100)
    flow.round(rtt_ms=200)
    flow.ack(rtt_ms=200)
    assert flow.cwnd == 51


def test_keeps_two_to_four_packets_queued_on_a_link() -> None:
    steady = run("vegas", seconds=15, limit=200)[0].after(8)
    assert len(steady) >= 0.999 * 1000 * 7
    assert all(2 <= sample.cwnd - 40 <= 5 for sample in steady)
    assert all(sample.rtt <= 45e6 for sample in steady)
