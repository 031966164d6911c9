import pytest

from distrlcc.control import cubic
from distrlcc.control.reno import RECOVER, SSTHRESH
from tests.control.drive import Driver


def at_window(window: float) -> Driver:
    """A flow that has just left recovery from a loss at ``window``."""
    flow = Driver("cubic")
    flow.ack()
    flow.fill(window)
    for _ in range(2):  # which reduce once
        flow.ack(lost=1)
    leave_recovery(flow)
    return flow


def leave_recovery(flow: Driver) -> None:
    while flow.seq < flow.state[RECOVER] - 1:
        flow.ack(after_ms=0)


def test_loss_reduces_by_beta_and_sets_k_by_equation_2() -> None:
    flow = at_window(100)
    assert flow.cwnd == pytest.approx(70)
    assert flow.state[SSTHRESH] == pytest.approx(70)
    assert flow.state[cubic.W_MAX] == 100
    flow.ack()
    assert flow.state[cubic.K] == pytest.approx((100 * 0.3 / 0.4) ** (1 / 3))


def test_window_follows_the_cubic_through_concave_and_convex_regions() -> None:
    flow = at_window(100)
    flow.state[cubic.SRTT] = 300e6
    flow.ack(rtt_ms=300)
    start, k = flow.now, 4.2172
    worst = 0.0
    while (t := (flow.now - start) * 1e-9) < 2 * k:
        flow.ack(rtt_ms=300, after_ms=300 / flow.cwnd)
        worst = max(worst, abs(flow.cwnd / (0.4 * (t - k) ** 3 + 100) - 1))
        if abs(t - k) < 0.01:
            assert flow.cwnd == pytest.approx(100, abs=0.1)
    assert worst < 0.005
    assert flow.cwnd == pytest.approx(130, rel=0.01)


def test_growth_per_ack_is_clamped_to_half_a_window_per_round() -> None:
    flow = at_window(100)
    flow.ack()
    before = flow.cwnd
    flow.ack(after_ms=60_000)
    assert flow.cwnd == pytest.approx(before + 0.5)


def test_fast_convergence_gives_room_after_a_loss_below_w_max() -> None:
    flow = at_window(100)
    flow.fill(80)
    flow.ack(lost=1)
    leave_recovery(flow)
    assert flow.state[cubic.W_MAX] == pytest.approx(80 * 1.7 / 2)
    flow.ack()
    assert flow.state[cubic.K] == pytest.approx(((68 - 56) / 0.4) ** (1 / 3))


def test_reno_friendly_region_grows_by_alpha_then_by_one() -> None:
    flow = at_window(10)
    grown = []
    for _ in range(16):
        before, packets = flow.cwnd, int(flow.cwnd)
        for _ in range(packets):
            flow.ack(rtt_ms=2, after_ms=2 / packets)
        grown.append((flow.cwnd - before, before))
    slow = [growth for growth, window in grown if window < 9]
    fast = [growth for growth, window in grown if window > 10]
    assert slow == pytest.approx([3 * 0.3 / 1.7] * len(slow), abs=0.08)
    assert fast == pytest.approx([1.0] * len(fast), abs=0.12)
    assert len(slow) > 2
    assert len(fast) > 2


def test_timeout_and_the_stage_after_it() -> None:
    flow = at_window(100)
    flow.timeout()
    assert flow.cwnd == 1
    assert flow.state[SSTHRESH] == pytest.approx(49)
    flow.seq = flow.sent - 1
    for _ in range(48):
        flow.ack()
    assert flow.cwnd == 49
    flow.ack()
    assert flow.state[cubic.K] == 0
    assert flow.state[cubic.W_MAX] == 49
