import pytest

from distrlcc.control.reno import RECOVER, SSTHRESH
from tests.control.drive import Driver, run


def test_a_gap_that_ends_at_the_recovery_point_is_old() -> None:
    flow = Driver("reno")
    flow.ack(lost=1)
    flow.ack(lost=flow.sent - flow.seq - 1)
    assert flow.cwnd == 5 + 1 / 5
    flow.ack(lost=1)
    assert flow.cwnd == pytest.approx(2.6)


def test_congestion_avoidance_adds_about_one_packet_per_round() -> None:
    flow = Driver("reno")
    flow.round()
    flow.ack(lost=1)
    while flow.seq < flow.state[RECOVER] - 1:
        flow.ack()
        assert flow.cwnd == 10
    before = flow.cwnd
    for _ in range(int(before)):
        flow.ack()
    assert flow.cwnd == pytest.approx(before + 1, abs=0.06)


def test_timeout_goes_to_one_packet_and_holds_ssthresh_when_repeated() -> None:
    flow = Driver("reno")
    flow.round()
    for _ in range(2):
        flow.timeout()
        assert (flow.cwnd, flow.state[SSTHRESH]) == (1, 10)
    # The probe's ACK shows the old losses and starts slow start again.
    flow.sent += 1
    flow.ack(lost=flow.sent - flow.seq - 2)
    assert flow.cwnd == 2


def test_sawtooth_on_a_link_with_one_bdp_of_queue() -> None:
    windows = [sample.cwnd for sample in run("reno", seconds=30, rtt_ms=40, limit=40)[0].after(10)]
    assert len(windows) >= 0.99 * 1000 * 20
    assert max(windows) == pytest.approx(81, abs=2)
    assert min(windows) == pytest.approx(40, abs=2)
