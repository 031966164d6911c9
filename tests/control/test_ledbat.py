import pytest

from distrlcc.control import ledbat
from distrlcc.control.reno import SSTHRESH
from distrlcc.control.state import CWND
from tests.control.drive import Driver, linear, run


def test_slow_start_doubles_until_nine_tenths_of_the_target() -> None:
    flow = Driver("ledbat")
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


@pytest.mark.parametrize(
    ("least", "others", "off_target"),
    [(100, 100, 1.0), (150, 150, 0.5), (200, 200, 0.0), (250, 250, -0.5), (150, 300, 0.5)],
)
def test_growth_is_by_the_distance_of_the_least_of_four_samples_from_the_target(
    least: float, others: float, off_target: float
) -> None:
    flow = linear("ledbat", 50, acks=4)
    for rtt in (others, least, others, others):
        flow.ack(rtt_ms=rtt)
    flow.fill(50)
    flow.state[SSTHRESH] = 2
    flow.ack(rtt_ms=others)
    assert flow.cwnd == pytest.approx(50 + off_target / 50)


def test_base_delay_is_forgotten_after_ten_minutes() -> None:
    flow = linear("ledbat", 50, acks=4)
    for minute in range(1, 10):
        flow.ack(rtt_ms=150, after_ms=60_000)
        assert flow.state[ledbat.BASE] == 100e6, minute
    flow.ack(rtt_ms=150, after_ms=60_000)
    assert flow.state[ledbat.BASE] == 150e6


def test_window_stays_within_one_packet_of_flight() -> None:
    flow = linear("ledbat", 50, acks=4)
    flow.sent = flow.seq + 1
    flow.controller.state[CWND] = 2
    flow.ack()
    assert flow.cwnd <= 2 + 1 + 1


@pytest.mark.slow
def test_holds_the_target_delay_on_a_deep_queue() -> None:
    (flow,) = run("ledbat", seconds=40, limit=1000)
    delays = [(sample.rtt - 40e6) / 1e6 for sample in flow.after(25)]
    assert len(delays) >= 0.999 * 1000 * 15
    assert min(delays) >= 90
    assert max(delays) <= 105


@pytest.mark.slow
def test_yields_to_reno() -> None:
    ledbats, reno = run("ledbat", "reno", seconds=40, limit=250)
    assert len(ledbats.after(20)) < 0.2 * len(reno.after(20))
