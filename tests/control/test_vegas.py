import numpy as np
import pytest

from distrlcc.control import vegas
from tests.control.drive import Driver, run


def linear(window: float) -> Driver:
    """A flow in linear mode at the start of a round, with a base RTT of 100 ms."""
    flow = Driver("vegas")
    flow.ack(rtt_ms=100)
    flow.state[vegas.SSTHRESH] = 2
    flow.fill(window)
    flow.state[vegas.ROUND_END] = flow.sent
    flow.state[vegas.ROUND_RTT] = np.inf
    return flow


def test_slow_start_doubles_every_other_round() -> None:
    flow = Driver("vegas")
    windows = []
    for _ in range(5):
        flow.round()
        windows.append(flow.cwnd)
    assert windows == [20, 20, 40, 40, 80]


def test_slow_start_ends_with_gamma_packets_in_the_queue() -> None:
    flow = Driver("vegas")
    for _ in range(3):
        flow.round(rtt_ms=100)
    assert flow.cwnd == 40
    flow.round(rtt_ms=120)
    flow.ack(rtt_ms=120)
    assert flow.cwnd == pytest.approx(40 * 100 / 120 + 1)
    assert flow.cwnd >= flow.state[vegas.SSTHRESH]


@pytest.mark.parametrize(
    ("queued", "change"), [(0.0, 1), (1.9, 1), (2.1, 0), (3.9, 0), (4.1, -1), (20.0, -1)]
)
def test_linear_mode_keeps_between_alpha_and_beta(queued: float, change: float) -> None:
    flow = linear(50)
    flow.round(rtt_ms=100 * 50 / (50 - queued))
    assert flow.cwnd == 50
    flow.ack(rtt_ms=1000)
    assert flow.cwnd == 50 + change


def test_the_least_rtt_of_the_round_counts() -> None:
    flow = linear(50)
    flow.ack(rtt_ms=100)
    flow.round(rtt_ms=200)
    flow.ack(rtt_ms=200)
    assert flow.cwnd == 51


def test_keeps_two_to_four_packets_queued_on_a_link() -> None:
    steady = run("vegas", seconds=15, limit=200)[0].after(8)
    assert len(steady) >= 0.999 * 1000 * 7
    assert all(2 <= sample.cwnd - 40 <= 5 for sample in steady)
    assert all(sample.rtt <= 45e6 for sample in steady)
