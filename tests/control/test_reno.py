from __future__ import annotations

from typing import Any

import pytest

from distrlcc.control.reno import RECOVER, SSTHRESH
from distrlcc.control.schemes import SchemeController


def test_slow_start_adds_one_packet_per_ack_and_so_doubles_per_round(driver: Any) -> None:
    flow = driver("reno")
    flow.ack()
    assert flow.cwnd == 11
    flow = driver("reno")
    for expected in (20, 40, 80):
        flow.round()
        assert flow.cwnd == expected


def test_loss_halves_once_per_window_and_recovery_does_not_grow(driver: Any) -> None:
    flow = driver("reno")
    flow.round()
    flow.round()
    assert flow.cwnd == 40
    flow.ack(lost=1)
    assert flow.cwnd == 20
    recover = flow.sent
    flow.ack(lost=2)
    assert flow.cwnd == 20
    while flow.seq < recover - 1:
        flow.ack()
    assert flow.cwnd == 20


def test_a_gap_that_ends_at_the_recovery_point_is_old(driver: Any) -> None:
    flow = driver("reno")
    flow.ack(lost=1)
    flow.ack(lost=flow.sent - flow.seq - 1)
    assert flow.cwnd == 5 + 1 / 5
    flow.ack(lost=1)
    assert flow.cwnd == pytest.approx(2.6)


def test_congestion_avoidance_adds_about_one_packet_per_round(driver: Any) -> None:
    flow = driver("reno")
    flow.round()
    flow.ack(lost=1)
    while flow.seq < flow.state[RECOVER] - 1:
        flow.ack()
    before = flow.cwnd
    for _ in range(int(before)):
        flow.ack()
    assert flow.cwnd == pytest.approx(before + 1, abs=0.06)


def test_timeout_goes_to_one_packet_and_holds_ssthresh_when_repeated(driver: Any) -> None:
    flow = driver("reno")
    flow.round()
    flow.timeout()
    assert (flow.cwnd, flow.state[SSTHRESH]) == (1, 10)
    flow.timeout()
    assert (flow.cwnd, flow.state[SSTHRESH]) == (1, 10)


def test_the_probe_s_ack_shows_old_losses_and_restarts_slow_start(driver: Any) -> None:
    flow = driver("reno")
    flow.round()
    flow.timeout()
    probe = flow.sent
    flow.sent += 1
    flow.ack(lost=probe - flow.seq - 1)
    assert flow.seq == probe
    assert flow.cwnd == 2


def test_sawtooth_on_a_link_with_one_bdp_of_queue(link: Any, after: Any) -> None:
    (samples,) = link(rate=1000, rtt_ms=40, limit=40).run([SchemeController("reno")], 30)
    steady = after(samples, 10)
    windows = [sample.cwnd for sample in steady]
    assert len(steady) >= 0.99 * 1000 * 20
    assert max(windows) == pytest.approx(81, abs=2)
    assert min(windows) == pytest.approx(40, abs=2)
