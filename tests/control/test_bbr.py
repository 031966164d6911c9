import itertools
import math

import pytest

from distrlcc.control import bbr
from distrlcc.control.bbr import DRAIN, PROBE_BW, PROBE_RTT, STARTUP
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import CWND, PACING
from tests.control.drive import Driver, Recorded, Sample, run

RATE, BDP, RTPROP = 1000, 40, 40e6
GAINS = [1.25, 0.75, 1, 1, 1, 1, 1, 1]
HIGH = 2 / math.log(2)


@pytest.fixture(scope="module")
def flow() -> Recorded:
    """Twelve seconds alone on a link of 1000 packets/s and 40 ms."""
    return run("bbr", seconds=12, limit=500)[0]


def within(flow: Recorded, mode: float) -> list[Sample]:
    return [sample for sample in flow.samples if sample.state[bbr.MODE] == mode]


def test_starts_with_the_nominal_pacing_rate_and_the_high_gain() -> None:
    state = SchemeController("bbr").state
    assert (state[bbr.MODE], state[bbr.PACING_GAIN]) == (STARTUP, pytest.approx(HIGH))
    assert state[PACING] == pytest.approx(2.885 * 10 / 1e-3, rel=1e-3)


def test_states_follow_in_order_with_their_gains(flow: Recorded) -> None:
    modes = [mode for mode, _ in itertools.groupby(s.state[bbr.MODE] for s in flow.samples)]
    assert modes == [STARTUP, DRAIN, PROBE_BW, PROBE_RTT, PROBE_BW]
    gains = {STARTUP: [(HIGH, HIGH)], DRAIN: [(1 / HIGH, HIGH)], PROBE_RTT: [(1.0, 1.0)]}
    gains[PROBE_BW] = [(gain, 2.0) for gain in GAINS]
    for sample in flow.samples:
        mode, pacing, cwnd = sample.state[[bbr.MODE, bbr.PACING_GAIN, bbr.CWND_GAIN]]
        assert (pacing, cwnd) in gains[mode]


def test_finds_bandwidth_and_round_trip_time_and_paces_and_sends_by_them(flow: Recorded) -> None:
    for sample in flow.after(1):
        state = sample.state
        assert state[bbr.BTLBW] == pytest.approx(RATE, rel=0.05)
        assert state[PACING] == pytest.approx(state[bbr.PACING_GAIN] * state[bbr.BTLBW])
        if sample.now < 10e9:
            assert sample.cwnd == pytest.approx(2 * BDP + 3, rel=0.03)
    assert flow.state[bbr.RTPROP] == pytest.approx(RTPROP, rel=0.01)


def test_startup_ends_after_three_rounds_without_growth(flow: Recorded) -> None:
    full = [sample.state[bbr.FULL_COUNT] for sample in within(flow, STARTUP)]
    assert [count for count, _ in itertools.groupby(full)][-3:] == [0, 1, 2]
    drained = within(flow, DRAIN)
    assert drained[0].state[bbr.FULL_COUNT] == 3
    assert drained[-1].inflight == pytest.approx(BDP + 3, abs=3)


def test_probe_bw_cycles_through_eight_phases_of_about_one_rtprop(flow: Recorded) -> None:
    steady = [sample for sample in within(flow, PROBE_BW) if 1e9 <= sample.now < 10e9]
    groups = itertools.groupby(steady, lambda sample: int(sample.state[bbr.CYCLE_INDEX]))
    phases = [(index, list(group)) for index, group in groups]
    for (index, _), (following, _) in itertools.pairwise(phases):
        assert following == (index + 1) % 8
    for index, group in phases[1:-1]:
        assert {sample.state[bbr.PACING_GAIN] for sample in group} == {GAINS[index]}
        length = group[-1].now - group[0].now
        assert length <= 2 * RTPROP
        assert index <= 1 or length == pytest.approx(RTPROP, abs=2e6)


def test_probe_rtt_after_ten_seconds_holds_four_packets_for_200_ms(flow: Recorded) -> None:
    probing = within(flow, PROBE_RTT)
    assert 10e9 < probing[0].now < 11e9
    assert all(sample.cwnd == 4 for sample in probing)
    held = [sample for sample in probing if sample.state[bbr.PROBE_RTT_DONE] > 0]
    assert all(sample.inflight <= 4 for sample in held)
    assert min(sample.rtt for sample in held) == RTPROP
    restored = next(sample for sample in flow.samples if sample.now > probing[-1].now)
    assert 200e6 <= restored.now - held[0].now < 300e6
    assert restored.cwnd == pytest.approx(2 * BDP + 3, rel=0.03)


@pytest.mark.slow
def test_probe_rtt_of_many_rounds_does_not_forget_the_bandwidth() -> None:
    (flow,) = run("bbr", seconds=11, rate=5000, rtt_ms=5, limit=100)
    probing = within(flow, PROBE_RTT)
    assert probing[-1].state[bbr.ROUND_COUNT] - probing[0].state[bbr.ROUND_COUNT] > 10
    for sample in flow.after(1):
        assert sample.state[bbr.BTLBW] == pytest.approx(5000, rel=0.05)


def test_bandwidth_is_forgotten_after_ten_rounds() -> None:
    flow = Driver("bbr")
    flow.ack(rtt_ms=10, rate=1000)
    start = flow.state[bbr.ROUND_COUNT]
    for _ in range(2000):
        flow.ack(rtt_ms=10, rate=500)
        age = flow.state[bbr.ROUND_COUNT] - start
        assert flow.state[bbr.BTLBW] == (1000 if age <= 10 else 500)
    assert age > 11


def test_the_seed_chooses_any_first_phase_but_the_draining_one() -> None:
    first = set()
    for seed in range(60):
        flow = Driver("bbr", seed)
        while flow.state[bbr.MODE] != PROBE_BW:
            flow.round()
            flow.fill(20)
        first.add(flow.state[bbr.CYCLE_INDEX])
    assert first == {0, 2, 3, 4, 5, 6, 7}


def test_recovery_conserves_packets_for_a_round_and_restores_the_window() -> None:
    flow = Driver("bbr")
    flow.round()
    before = flow.cwnd
    inflight = flow.sent - flow.seq - 1
    flow.ack(lost=5)
    assert flow.cwnd == inflight - 6 + 1
    recover = flow.state[bbr.RECOVER]
    while flow.seq < recover - 1:
        flow.ack()
        assert flow.cwnd < before
    flow.ack()
    assert flow.cwnd >= before


def test_random_loss_does_not_slow_it_down() -> None:
    (flow,) = run("bbr", seconds=8, limit=100, loss=0.02, seed=3)
    assert len(flow.after(2)) > 0.95 * 0.98 * RATE * 6


def test_timeout_goes_to_one_packet_until_the_probe_is_acknowledged() -> None:
    flow = Driver("bbr")
    flow.round()
    before = flow.cwnd
    flow.timeout()
    assert flow.state[CWND] == 1
    probe = flow.sent
    flow.sent += 1
    flow.ack(lost=probe - flow.seq - 1)
    assert flow.cwnd >= before
