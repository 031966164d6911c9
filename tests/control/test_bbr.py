from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from distrlcc.control import bbr
from distrlcc.control.bbr import DRAIN, PROBE_BW, PROBE_RTT, STARTUP
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import CWND, PACING

RATE, RTT_MS = 1000, 39
BDP = 40
GAINS = [1.25, 0.75, 1, 1, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def samples(link: Any) -> Any:
    """Twelve seconds alone on a link of 1000 packets/s and 40 ms."""
    return link(rate=RATE, rtt_ms=RTT_MS, limit=500).run([SchemeController("bbr")], 12)[0]


def modes(samples: Any) -> Any:
    return [mode for mode, _ in itertools.groupby(s.state[bbr.MODE] for s in samples)]


def test_starts_with_the_nominal_pacing_rate_and_the_high_gain() -> None:
    state = SchemeController("bbr").state
    assert state[bbr.MODE] == STARTUP
    assert state[bbr.PACING_GAIN] == pytest.approx(2 / math.log(2))
    assert state[PACING] == pytest.approx(2.885 * 10 / 1e-3, rel=1e-3)


def test_states_follow_in_order(samples: Any) -> None:
    assert modes(samples) == [STARTUP, DRAIN, PROBE_BW, PROBE_RTT, PROBE_BW]


def test_gains_of_each_state(samples: Any) -> None:
    high = 2 / math.log(2)
    for sample in samples:
        mode, pacing, cwnd = sample.state[[bbr.MODE, bbr.PACING_GAIN, bbr.CWND_GAIN]]
        if mode == STARTUP:
            assert (pacing, cwnd) == (high, high)
        elif mode == DRAIN:
            assert (pacing, cwnd) == (1 / high, high)
        elif mode == PROBE_BW:
            assert pacing in GAINS
            assert cwnd == 2
        else:
            assert (pacing, cwnd) == (1, 1)


def test_finds_the_bandwidth_and_the_round_trip_time(samples: Any, after: Any) -> None:
    for sample in after(samples, 1):
        assert sample.state[bbr.BTLBW] == pytest.approx(RATE, rel=0.05)
    assert samples[-1].state[bbr.RTPROP] == pytest.approx(40e6, rel=0.01)


def test_startup_ends_after_three_rounds_without_growth(samples: Any) -> None:
    grown = [s.state for s in samples if s.state[bbr.MODE] == STARTUP]
    counts = [count for count, _ in itertools.groupby(s[bbr.FULL_COUNT] for s in grown)]
    assert counts[-3:] == [0, 1, 2]
    drained = next(s.state for s in samples if s.state[bbr.MODE] == DRAIN)
    assert drained[bbr.FULL_COUNT] == 3


def test_drain_ends_with_one_bdp_in_flight(samples: Any) -> None:
    last = [s for s in samples if s.state[bbr.MODE] == DRAIN][-1]
    assert last.inflight == pytest.approx(BDP + 3, abs=3)


def test_probe_bw_cycles_through_eight_phases_of_about_one_rtprop(samples: Any, after: Any) -> None:
    steady = [s for s in after(samples, 1) if s.state[bbr.MODE] == PROBE_BW and s.now < 10e9]
    phases = [
        (index, list(group))
        for index, group in itertools.groupby(steady, lambda s: s.state[bbr.CYCLE_INDEX])
    ]
    for (index, _), (following, _) in itertools.pairwise(phases):
        assert following == (index + 1) % 8
    for index, group in phases[1:-1]:
        assert {s.state[bbr.PACING_GAIN] for s in group} == {GAINS[int(index)]}
        length = group[-1].now - group[0].now
        assert length <= 2 * 40e6
        if index > 1:
            assert length == pytest.approx(40e6, abs=2e6)


def test_paces_at_the_gain_times_the_bandwidth(samples: Any, after: Any) -> None:
    for sample in after(samples, 1):
        state = sample.state
        expected = state[bbr.PACING_GAIN] * state[bbr.BTLBW]
        assert state[PACING] == pytest.approx(expected)


def test_window_in_probe_bw_is_two_bdp(samples: Any, after: Any) -> None:
    windows = [s.cwnd for s in after(samples, 1) if s.now < 10e9]
    assert windows == pytest.approx([2 * BDP + 3] * len(windows), rel=0.03)


def test_probe_rtt_after_ten_seconds_holds_four_packets_for_200_ms(samples: Any) -> None:
    probing = [s for s in samples if s.state[bbr.MODE] == PROBE_RTT]
    assert 10e9 < probing[0].now < 11e9
    assert all(s.cwnd == 4 for s in probing)
    held = [s for s in probing if s.state[bbr.PROBE_RTT_DONE] > 0]
    assert all(s.inflight <= 4 for s in held)
    assert min(s.rtt for s in held) == 40_000_000
    restored = next(s for s in samples if s.now > probing[-1].now)
    assert 200e6 <= restored.now - held[0].now < 300e6
    assert restored.cwnd == pytest.approx(2 * BDP + 3, rel=0.03)


def test_probe_rtt_of_many_rounds_does_not_forget_the_bandwidth(link: Any, after: Any) -> None:
    (samples,) = link(rate=5000, rtt_ms=5, limit=100).run([SchemeController("bbr")], 11)
    probing = [s for s in samples if s.state[bbr.MODE] == PROBE_RTT]
    rounds = probing[-1].state[bbr.ROUND_COUNT] - probing[0].state[bbr.ROUND_COUNT]
    assert rounds > 10
    for sample in after(samples, 1):
        assert sample.state[bbr.BTLBW] == pytest.approx(5000, rel=0.05)


def test_bandwidth_is_forgotten_after_ten_rounds(driver: Any) -> None:
    flow = driver("bbr")
    flow.ack(rtt_ms=10, rate=1000)
    start = flow.state[bbr.ROUND_COUNT]
    for _ in range(2000):
        flow.ack(rtt_ms=10, rate=500)
        age = flow.state[bbr.ROUND_COUNT] - start
        assert flow.state[bbr.BTLBW] == (1000 if age <= 10 else 500)
    assert age > 11


def test_the_seed_chooses_any_first_phase_but_the_draining_one(driver: Any) -> None:
    first = set()
    for seed in range(60):
        flow = driver("bbr", seed)
        while flow.state[bbr.MODE] != PROBE_BW:
            flow.round(rtt_ms=100)
            flow.fill(20)
        first.add(flow.state[bbr.CYCLE_INDEX])
    assert first == {0, 2, 3, 4, 5, 6, 7}


def test_same_seed_same_run(link: Any) -> None:
    runs = [
        link(rate=RATE, rtt_ms=RTT_MS, limit=50).run([SchemeController("bbr", seed=s)], 3)[0]
        for s in (5, 5, 6)
    ]
    traces = [[(s.now, s.cwnd, s.pacing) for s in run] for run in runs]
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def test_recovery_conserves_packets_for_a_round_and_restores_the_window(driver: Any) -> None:
    flow = driver("bbr")
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


def test_random_loss_does_not_slow_it_down(link: Any, after: Any) -> None:
    lossy = link(rate=RATE, rtt_ms=RTT_MS, limit=100, loss=0.02, seed=3)
    (samples,) = lossy.run([SchemeController("bbr")], 8)
    assert len(after(samples, 2)) > 0.95 * 0.98 * RATE * 6


def test_timeout_goes_to_one_packet_until_the_probe_is_acknowledged(driver: Any) -> None:
    flow = driver("bbr")
    flow.round()
    before = flow.cwnd
    flow.timeout()
    assert flow.state[CWND] == 1
    probe = flow.sent
    flow.sent += 1
    flow.ack(lost=probe - flow.seq - 1)
    assert flow.cwnd >= before
