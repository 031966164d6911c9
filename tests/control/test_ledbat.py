from __future__ import annotations

from typing import Any

import pytest

from distrlcc.control import ledbat
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import CWND


def linear(driver: Any, window: Any) -> Any:
    """A flow past slow start, with a base RTT of 100 ms."""
    flow = driver("ledbat")
    for _ in range(4):
        flow.ack(rtt_ms=100)
    flow.state[ledbat.SSTHRESH] = 2
    flow.fill(window)
    return flow


def test_slow_start_doubles_until_nine_tenths_of_the_target(driver: Any) -> None:
    flow = driver("ledbat")
    flow.round(rtt_ms=100)
    assert flow.cwnd == 20
    flow.round(rtt_ms=185)
    assert flow.cwnd == 40
    for _ in range(4):
        flow.ack(rtt_ms=195)
    assert flow.cwnd == pytest.approx(43 / 2, abs=0.01)
    before = flow.cwnd
    for _ in range(30):
        flow.ack(rtt_ms=220)
    assert before - 0.4 < flow.cwnd < before


@pytest.mark.parametrize(("rtt", "off_target"), [(100, 1.0), (150, 0.5), (200, 0.0), (250, -0.5)])
def test_growth_is_proportional_to_the_distance_from_the_target(
    driver: Any, rtt: Any, off_target: Any
) -> None:
    flow = linear(driver, 50)
    for _ in range(4):
        flow.ack(rtt_ms=rtt)
    flow.fill(50)
    flow.state[ledbat.SSTHRESH] = 2
    flow.ack(rtt_ms=rtt)
    assert flow.cwnd == pytest.approx(50 + off_target / 50)


def test_the_least_of_four_samples_is_the_current_delay(driver: Any) -> None:
    flow = linear(driver, 50)
    for rtt in (300, 150, 300, 300):
        flow.ack(rtt_ms=rtt)
    flow.fill(50)
    flow.state[ledbat.SSTHRESH] = 2
    flow.ack(rtt_ms=300)
    assert flow.cwnd == pytest.approx(50 + 0.5 / 50)


def test_base_delay_is_forgotten_after_ten_minutes(driver: Any) -> None:
    flow = linear(driver, 50)
    for minute in range(1, 10):
        flow.ack(rtt_ms=150, after_ms=60_000)
        assert flow.state[ledbat.BASE] == 100e6, minute
    flow.ack(rtt_ms=150, after_ms=60_000)
    assert flow.state[ledbat.BASE] == 150e6


def test_window_stays_within_one_packet_of_flight(driver: Any) -> None:
    flow = linear(driver, 50)
    flow.sent = flow.seq + 1
    flow.controller.state[CWND] = 2
    flow.ack()
    assert flow.cwnd <= 2 + 1 + 1


def test_loss_halves_once_per_window_and_not_below_two(driver: Any) -> None:
    flow = linear(driver, 50)
    flow.ack(lost=1)
    assert flow.cwnd == 25
    flow.ack(lost=1)
    assert flow.cwnd == pytest.approx(25, abs=0.1)
    flow = linear(driver, 3)
    flow.ack(lost=1)
    assert flow.cwnd == 2


def test_timeout(driver: Any) -> None:
    flow = linear(driver, 50)
    flow.timeout()
    assert (flow.cwnd, flow.state[ledbat.SSTHRESH]) == (1, 25)


def test_holds_the_target_delay_on_a_deep_queue(link: Any, after: Any) -> None:
    (samples,) = link(rate=1000, rtt_ms=39, limit=1000).run([SchemeController("ledbat")], 40)
    delays = [(sample.rtt - 40e6) / 1e6 for sample in after(samples, 25)]
    assert len(delays) >= 0.999 * 1000 * 15
    assert min(delays) >= 90
    assert max(delays) <= 105


def test_yields_to_reno(link: Any, after: Any) -> None:
    flows = [SchemeController("ledbat"), SchemeController("reno")]
    ledbat_acks, reno_acks = link(rate=1000, rtt_ms=39, limit=250).run(flows, 40)
    assert len(after(ledbat_acks, 20)) < 0.2 * len(after(reno_acks, 20))
