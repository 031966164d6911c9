"""The guard and the pacing: hand-computed steps, and links on which nothing else would help."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from distrlcc.control import windows
from distrlcc.control.windows import WindowControl
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Change, Link, Scenario
from distrlcc.types import IntervalStats

DOUBLE = 8
"""The action of ``fine`` that doubles the window."""


def seen(acked: float, lost: float = 0.0, rtt: float = 0.05, cwnd: float = 100.0) -> IntervalStats:
    """Return a step of 50 ms."""
    values = dict.fromkeys(IntervalStats.names(), np.zeros(1)) | {
        "duration": np.array([0.05]),
        "acked": np.array([acked]),
        "lost": np.array([lost]),
        "rtt_sum": np.array([acked * rtt]),
        "rtt_min": np.array([rtt if acked else 0.0]),
        "inflight": np.array([cwnd]),
        "cwnd": np.array([cwnd]),
    }
    return IntervalStats(**values)


def allowed(control: WindowControl, held: float, chosen: float) -> float:
    rates = np.zeros(1)
    cwnd, _ = control.apply((np.array([held]), rates), (np.array([chosen]), rates))
    return float(cwnd[0])


def test_a_window_grows_by_what_was_acknowledged_and_never_in_silence() -> None:
    control = WindowControl(1, 0.0, 0.05)
    assert allowed(control, 10, 20) == 10  # before the first acknowledgement
    assert allowed(control, 10, 5) == 5
    control.observe(seen(4))
    assert allowed(control, 10, 40) == 26
    assert control.lowered
    assert allowed(control, 10, 12) == 12
    assert not control.lowered
    control.observe(seen(0))
    assert allowed(control, 18, 36) == 18
    assert control.lowered
    control.reset(np.array([0]))
    assert not control.lowered


def test_a_window_is_bounded_by_what_the_path_delivers() -> None:
    control = WindowControl(1, 0.0, 0.05)
    control.observe(seen(100))  # 2,000 packets/s in 50 ms
    assert allowed(control, 5000, 5000) == windows.MOST_BDP * 100 + windows.SPARE
    # After a fall of the rate to a tenth the bound follows, by a sixteenth in each round trip.
    for _ in range(32):
        control.observe(seen(10))
    assert allowed(control, 5000, 5000) == pytest.approx(10 + 800 * (15 / 16) ** 32)
    control.reset(np.array([0]))
    assert allowed(control, 10, 20) == 10


def test_cubic_takes_over_after_two_bad_rounds_and_gives_back() -> None:
    control = WindowControl(1, 0.0, 0.05)
    for lost in (0, 30, 3, 30, 0):  # a bad round now and then is the policy's matter
        control.observe(seen(100 - lost, lost))
        assert control.on[0] == 0
    for lost in (30, 30):
        control.observe(seen(100 - lost, lost))
    assert control.on[0] == 1
    assert allowed(control, 100, 200) == pytest.approx(70)
    # One reduction for a round trip's loss, then concave growth towards what it was.
    control.observe(seen(50, 20, cwnd=70))
    assert allowed(control, 70, 200) == pytest.approx(49)
    found = []
    while control.on[0]:
        control.observe(seen(64, cwnd=49))
        found.append(allowed(control, 49, 200))
    assert found == sorted(found)
    assert 49 < found[-2] < 70
    assert len(found) == windows.CALM_ROUNDS
    # Again where packets queue, and so from half of the bound on; and it lasts twice as long.
    for _ in range(5):
        control.observe(seen(96, 4, rtt=0.08))
    assert control.on[0] == 1
    rounds = 0
    while control.on[0]:
        control.observe(seen(100))
        rounds += 1
    assert rounds >= 2 * windows.CALM_ROUNDS


def test_random_loss_is_not_taken_for_a_queue_and_silence_not_for_calm() -> None:
    # 10% of 64 packets a round trip, as chance has it.
    rng, control = np.random.default_rng(1), WindowControl(200, 0.0, 0.05)
    for _ in range(200):
        lost = rng.binomial(64, 0.1, 200).astype(float)
        step = seen(64)
        columns = {name: np.repeat(getattr(step, name), 200) for name in IntervalStats.names()}
        columns |= {"acked": 64 - lost, "lost": lost, "rtt_sum": (64 - lost) * 0.05}
        control.observe(IntervalStats(**columns))
    assert (control.state[:, windows.ENTRIES] > 0).mean() < 0.1
    # Where packets queue, half of the bound is enough, and nothing that is heard ends it.
    control = WindowControl(1, 0.0, 0.05)
    control.observe(seen(100))
    for _ in range(10):
        control.observe(seen(96, 4, rtt=0.12))
    assert control.on[0] == 1
    for _ in range(200):
        control.observe(seen(0))
    assert control.on[0] == 1


def test_pacing_is_windows_per_smoothed_round_trip() -> None:
    control = WindowControl(1, 2.0, 0.0)
    chosen = np.array([30.0]), np.zeros(1)
    assert control.apply(chosen, chosen)[1][0] == 0.0  # at once, until an RTT is known
    control.observe(seen(1, rtt=0.05))
    assert control.apply(chosen, chosen)[1][0] == pytest.approx(2 * 30 / 0.05)
    control.observe(seen(1, rtt=0.13))  # RFC 6298: an eighth of the way
    assert control.apply(chosen, chosen)[1][0] == pytest.approx(2 * 30 / 0.06)


def test_a_queue_without_room_is_paced_gently_until_losses_end() -> None:
    control = WindowControl(1, 1.5, 0.05)
    chosen = np.array([100.0]), np.zeros(1)

    def windows_a_round_trip(*step: float) -> float:
        control.observe(seen(*step))
        cwnd, rate = control.apply(chosen, chosen)
        return float(rate[0] * control.state[0, windows.SRTT] / cwnd[0])

    # 2,000 packets/s in 50 ms: a packet takes 0.5 ms, and two of them 1 ms.
    assert windows_a_round_trip(100) == pytest.approx(1.5)
    assert windows_a_round_trip(98, 2) == pytest.approx(1.05)
    for _ in range(9):  # for ten round trips
        assert windows_a_round_trip(100) == pytest.approx(1.05)
    for _ in range(2):
        after = windows_a_round_trip(100)
    assert after == pytest.approx(1.5)
    # Losses from a queue that holds more, by the path's least RTT ever, are no such sign.
    windows_a_round_trip(98, 2)
    for _ in range(9):
        after = windows_a_round_trip(100, 1, 0.0515)
    assert after == pytest.approx(1.5)
    slower = WindowControl(1, 1.0, 0.05)
    slower.observe(seen(98, 2))
    assert slower.apply(chosen, chosen)[1][0] == pytest.approx(100 / 0.05)


def run(config: EnvConfig, link: Link, seconds: float) -> LinkBatch:
    """Run a policy that doubles its window in each step."""
    batch = LinkBatch(1, config)
    batch.load(0, Scenario("doubling", link, duration_s=20.0))
    for _ in range(round(seconds * 100)):
        batch.step(np.array([DOUBLE]))
    return batch


def test_the_guard_keeps_a_mad_policy_from_flooding_a_path() -> None:
    link = Link(rate_mbps=12.0, delay_ms=20.0, queue_packets=10)
    lost = {}
    for guard in (0.0, 0.05):
        row = run(EnvConfig(action="fine", guard=guard), link, 20.0).simulator.flows[0]
        lost[guard] = row[col.DROPPED] / row[col.SENT]
        assert row[col.DELIVERED] > 0.7 * 20 * 12e6 / (8 * 1504)
    assert lost[0.0] > 0.9
    assert lost[0.05] < 0.3


def test_a_link_that_is_silent_at_first_gets_one_window() -> None:
    link = Link(rate_mbps=0.0, delay_ms=20.0, changes=(Change(0.9, rate_mbps=12.0),))
    batch = run(EnvConfig(action="fine", guard=0.05), link, 0.8)
    assert batch.simulator.flows[0, col.SENT] == 12  # and what the timer sent after 0.24 and 0.48 s


def test_rates_are_neither_guarded_nor_paced() -> None:
    for name in ("guard", "pacing", "cuts_per_s"):
        with pytest.raises(ConfigError, match="expected 0, as action rate sets rates"):
            EnvConfig(action="rate", **{name: 1.0})  # type: ignore[arg-type]


HOLD = 4
"""The action of ``fine`` that leaves the window, of 10 packets at first, as it is."""
NOISES = [field.name for field in fields(Link) if field.name.endswith("jitter_ms")]


def outside(link: Link, seconds: float = 12.0) -> LinkBatch:
    """Run a policy that keeps its first window, with the guard as where a policy is used."""
    batch = LinkBatch(1, EnvConfig(action="fine", pacing=1.5, guard=0.05, outside=True))
    batch.load(0, Scenario("outside", link, duration_s=60.0))
    for _ in range(round(seconds * 100)):
        batch.step(np.array([HOLD]))
    return batch


def used(batch: LinkBatch, rate_mbps: float, seconds: float = 12.0) -> float:
    return float(batch.simulator.flows[0, col.DELIVERED] * 8 * 1504 / (rate_mbps * 1e6 * seconds))


@pytest.mark.parametrize("noises", [NOISES, *([name] for name in NOISES)])
@pytest.mark.parametrize("rate", [20.0, 50.0])
def test_where_delay_is_noise_cubics_rule_has_the_window_alone(
    noises: list[str], rate: float
) -> None:
    link = Link(rate_mbps=rate, delay_ms=10.0, queue_packets=150)
    calm = outside(link)
    assert calm.windows.state[0, windows.OUTSIDE_TIME] == 0.0
    assert used(calm, rate) < 0.35
    noisy = outside(replace(link, **dict[str, Any](dict.fromkeys(noises, 16.0))))
    assert noisy.windows.state[0, windows.NOISY_ENTRIES] >= 1
    assert noisy.windows.state[0, windows.SHORT_ENTRIES] == 0
    assert used(noisy, rate) > 0.7


@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("rtt_ms", [0.1, 1.5])
def test_a_lan_is_filled_by_cubics_rule_and_given_back_where_it_gets_longer(
    jitter: float, rtt_ms: float
) -> None:
    link = Link(rate_mbps=1000.0, delay_ms=rtt_ms / 2, queue_packets=500, ack_jitter_ms=jitter)
    batch = outside(link, 2.0)
    assert batch.windows.on[0] == windows.OUTSIDE
    assert batch.windows.lowered[0]
    assert used(batch, 1000.0, 2.0) > 0.8
    longer = replace(link, changes=(Change(1.0, delay_ms=20.0),))
    batch = outside(longer)
    assert batch.windows.on[0] == 0.0
    assert batch.windows.state[0, windows.SHORT_ENTRIES] == 1
    # Nothing of it where the policy is to send always.
    batch.windows.held = 0.0
    batch.windows.reset(np.array([0]))
    for _ in range(100):
        batch.step(np.array([HOLD]))
    assert batch.windows.state[0, windows.OUTSIDE_TIME] == 0.0


def test_cubics_windows_go_beyond_a_policys_and_noise_that_ends_gives_them_back() -> None:
    rng, control, cwnd = np.random.default_rng(3), WindowControl(1, 0.0, 0.05, windows.NOISE), 100.0

    def rounds(count: int, noise: float) -> float:
        """Let round trips of 50 ms pass, each with all of the window acknowledged."""
        window = cwnd
        for _ in range(count):
            drawn = 0.04 + noise * rng.random(100)
            step = replace(
                seen(window, cwnd=window),
                rtt_sum=np.array([window * drawn.mean()]),
                rtt_min=np.array([drawn.min()]),
            )
            control.observe(step)
            window = allowed(control, window, 100.0)
        return window

    rounds(100, 0.0)
    assert control.on[0] == 0.0
    assert rounds(250, 0.02) == windows.MOST_CWND > 8000
    assert control.on[0] == windows.OUTSIDE
    assert rounds(150, 0.0) > 8000  # calm for less than long enough
    assert rounds(100, 0.0) <= 100.0
    assert control.on[0] == 0.0
    # Again, and for twice as long.
    rounds(250, 0.02)
    assert control.on[0] == windows.OUTSIDE
    rounds(350, 0.0)
    assert control.on[0] == windows.OUTSIDE
    rounds(100, 0.0)
    assert control.on[0] == 0.0


def test_outside_needs_a_guard() -> None:
    with pytest.raises(
        ConfigError, match="outside is True: expected False, as it is of the guard's rule"
    ):
        EnvConfig(action="fine", outside=True)
