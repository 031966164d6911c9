from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distrlcc.control import vegas
from distrlcc.control.schemes import SchemeController


def linear(driver: Any, window: Any) -> Any:
    """A flow in linear mode at the start of a round, with a base RTT of 100 ms."""
    flow = driver("vegas")
    flow.ack(rtt_ms=100)
    flow.state[vegas.SSTHRESH] = 2
    flow.fill(window)
    flow.state[vegas.ROUND_END] = flow.sent
    flow.state[vegas.ROUND_RTT] = np.inf
    return flow


def test_slow_start_doubles_every_other_round(driver: Any) -> None:
    flow = driver("vegas")
    windows = []
    for _ in range(5):
        flow.round()
        windows.append(flow.cwnd)
    assert windows == [20, 20, 40, 40, 80]


def test_slow_start_ends_with_gamma_packets_in_the_queue(driver: Any) -> None:
    flow = driver("vegas")
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
def test_linear_mode_keeps_between_alpha_and_beta(driver: Any, queued: Any, change: Any) -> None:
    flow = linear(driver, 50)
    flow.round(rtt_ms=100 * 50 / (50 - queued))
    assert flow.cwnd == 50
    flow.ack(rtt_ms=1000)
    assert flow.cwnd == 50 + change


def test_the_least_rtt_of_the_round_counts(driver: Any) -> None:
    flow = linear(driver, 50)
    flow.ack(rtt_ms=100)
    flow.round(rtt_ms=200)
    flow.ack(rtt_ms=200)
    assert flow.cwnd == 51


def test_loss_halves_once_per_window(driver: Any) -> None:
    flow = linear(driver, 50)
    flow.ack(lost=1)
    flow.ack(lost=1)
    assert flow.cwnd == 25


def test_timeout(driver: Any) -> None:
    flow = linear(driver, 50)
    flow.timeout()
    assert (flow.cwnd, flow.state[vegas.SSTHRESH]) == (1, 25)


def test_keeps_two_to_four_packets_queued_on_a_link(link: Any, after: Any) -> None:
    (samples,) = link(rate=1000, rtt_ms=39, limit=200).run([SchemeController("vegas")], 15)
    steady = after(samples, 8)
    assert len(steady) >= 0.999 * 1000 * 7
    assert all(2 <= sample.cwnd - 40 <= 5 for sample in steady)
    assert all(sample.rtt <= 45e6 for sample in steady)
