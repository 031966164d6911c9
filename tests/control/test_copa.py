import numpy as np
import pytest

from distrlcc.control import copa
from distrlcc.control.state import CWND, MIN_CWND, PACING
from tests.control.drive import Driver, Sample, run


def steady(window: float) -> Driver:
    """A flow out of slow start, with a least RTT of 100 ms and a standing RTT of 110 ms."""
    flow = Driver("copa")
    flow.ack(rtt_ms=100)
    for _ in range(40):
        flow.ack(rtt_ms=110, after_ms=5)
    flow.state[copa.SLOW_START] = 0
    flow.state[[copa.VELOCITY, copa.SAME_DIRECTION]] = 1, 0
    flow.sent = flow.seq + 1
    flow.fill(window)
    flow.state[copa.ROUND_CWND] = window
    flow.state[copa.ROUND_END] = flow.sent
    return flow


@pytest.mark.parametrize(("window", "direction", "lost"), [(21, 1, 0), (23, -1, 0), (21, 1, 3)])
def test_steers_to_one_over_delta_times_queueing_delay_whatever_is_lost(
    window: int, direction: int, lost: int
) -> None:
    # Queueing 10 ms and delta 0.5: the target is 1 / (0.5 * 10 ms) = 200 packets/s, which is
    # 22 packets per 110 ms.
    flow = steady(window)
    flow.ack(rtt_ms=110, lost=lost)
    assert flow.cwnd == pytest.approx(window + direction * 2 / window)
    assert flow.state[PACING] == pytest.approx(2 * flow.cwnd / 0.110)
    assert flow.state[copa.INVERSE_DELTA] == 2


def test_slow_start_ends_above_the_target() -> None:
    flow = Driver("copa")
    flow.ack(rtt_ms=100)
    for _ in range(12):
        flow.ack(rtt_ms=110, after_ms=5)
    flow.fill(21)
    flow.ack(rtt_ms=110)
    assert flow.cwnd == 22
    flow.fill(23)
    flow.ack(rtt_ms=110)
    assert flow.state[copa.SLOW_START] == 0
    assert flow.cwnd == pytest.approx(23 - 2 / 23)


def test_velocity_doubles_from_the_third_round_in_one_direction_and_a_turn_resets_it() -> None:
    flow = steady(200)
    flow.state[copa.DIRECTION] = -1
    velocities = []
    for _ in range(6):
        flow.round(rtt_ms=130)
        velocities.append(flow.state[copa.VELOCITY])
    assert velocities == [1, 1, 1, 2, 4, 8]
    flow.fill(10)  # far below the target: it turns
    flow.ack(rtt_ms=110)
    assert (flow.state[copa.VELOCITY], flow.state[copa.DIRECTION]) == (1, 1)


def test_competitive_mode_adds_one_to_inverse_delta_and_halves_it_on_loss() -> None:
    flow = steady(21)
    flow.state[copa.EMPTY_TIME] = -10e9
    deltas = []
    for lost in (0, 0, 0, 0, 1, 1, 0):
        flow.round(rtt_ms=110, lost=lost)
        flow.ack(rtt_ms=110)
        deltas.append(flow.state[copa.INVERSE_DELTA])
    assert deltas == [3, 4, 5, 6, 3, 2, 3]


def test_timeout_restarts_slow_start() -> None:
    flow = steady(21)
    flow.timeout()
    assert flow.state[CWND] == MIN_CWND
    flow.ack(rtt_ms=100)
    assert flow.cwnd == MIN_CWND + 1


def test_equilibrium_on_a_link() -> None:
    late = alone_in_default_mode(seconds=20, limit=500, most=0.05)
    queue = np.array([sample.rtt - 40e6 for sample in late]) / 1e6
    assert 1 < queue.mean() < 6
    assert queue.max() < 15
    # The queue is nearly empty at least once in five RTTs (section 2.2).
    times = np.array([sample.now for sample in late])
    assert np.diff(times[queue <= 0.1 * queue.max()]).max() <= 5 * 46e6


def alone_in_default_mode(
    seconds: float, limit: int, most: float, rate: float = 1000, rtt_ms: float = 39
) -> list[Sample]:
    """Return the samples after five seconds on a link that Copa fills."""
    late = run("copa", seconds=seconds, rate=rate, rtt_ms=rtt_ms, limit=limit)[0].after(5)
    assert len(late) > 0.97 * rate * (seconds - 5)
    assert np.mean([sample.state[copa.INVERSE_DELTA] > 2 for sample in late]) < most
    return late


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "rtt_ms"), [(400, 20), (1000, 10), (4000, 10)])
def test_alone_on_a_short_path_it_stays_in_default_mode(rate: float, rtt_ms: float) -> None:
    late = alone_in_default_mode(15, 300, 0.1, rate, rtt_ms)
    base = rtt_ms * 1e6 + 1e9 / rate
    assert np.mean([(sample.rtt - base) * rate / 1e9 for sample in late]) < 6


@pytest.mark.slow
def test_competes_with_reno_in_a_deep_queue() -> None:
    copas, reno = run("copa", "reno", seconds=40, limit=80)
    late = copas.after(15)
    assert max(sample.state[copa.INVERSE_DELTA] for sample in late) > 4
    assert 0.2 < len(late) / (len(late) + len(reno.after(15))) < 0.8


@pytest.mark.slow
def test_shares_with_itself() -> None:
    a, b = (
        len(flow.after(15)) for flow in run("copa", "copa", seconds=40, limit=500, starts=(0, 5))
    )
    assert a + b > 0.97 * 1000 * 25
    assert (a + b) ** 2 / (2 * (a * a + b * b)) > 0.95
