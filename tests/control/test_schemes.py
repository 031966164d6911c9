"""Every scheme and controller: numbers, sound windows, full links."""

import numpy as np
import pytest

from distrlcc.control import schemes
from distrlcc.control.reno import SSTHRESH
from distrlcc.control.schemes import SchemeController, initialise, on_ack, on_timeout
from distrlcc.control.state import CWND, INITIAL_CWND, PACING, SCHEMES, STATE_SIZE
from distrlcc.errors import ConfigError
from distrlcc.library import simulate
from distrlcc.sim.scenario import Link
from distrlcc.types import PACKET_BYTES, Ack
from tests.control.drive import Driver, linear, run

COMPILED = list(SCHEMES)[2:]
ADAPTIVE = COMPILED[1:]


def test_numbers_are_fixed() -> None:
    assert list(SCHEMES.values()) == list(range(len(SCHEMES)))
    assert (schemes.AGENT, schemes.ORACLE, schemes.FIXED, schemes.LEDBAT) == (0, 1, 2, 8)
    assert SCHEMES["cubic"] == schemes.CUBIC == 4


def test_an_unknown_name_lists_the_near_ones_first() -> None:
    with pytest.raises(ConfigError, match=r"unknown scheme 'cubik': did you mean cubic\?.*ledbat"):
        SCHEMES["cubik"]


@pytest.mark.parametrize("name", SCHEMES)
def test_initialise_clears_the_row_and_sets_the_initial_window(name: str) -> None:
    dirty, clean = np.full(STATE_SIZE, 7.5), np.zeros(STATE_SIZE)
    for row in (dirty, clean):
        initialise(SCHEMES[name], row, 5, 9, INITIAL_CWND)
    assert np.array_equal(dirty, clean)
    assert clean[CWND] == INITIAL_CWND
    assert (clean[PACING] > 0) == (name == "bbr")


@pytest.mark.parametrize("name", ["agent", "oracle", "fixed"])
def test_windows_set_from_outside_are_left_alone(name: str) -> None:
    row = np.zeros(STATE_SIZE)
    initialise(SCHEMES[name], row, 0, 0, 33.0)
    before = row.copy()
    on_ack(SCHEMES[name], row, 5, 5, 9, 10, 4, 0, 1, 0, 1.0, 1)
    on_timeout(SCHEMES[name], row, 10)
    assert np.array_equal(row, before)
    assert row[CWND] == (33 if name == "fixed" else INITIAL_CWND)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("seed", range(3))
def test_window_and_pacing_stay_sound_whatever_arrives(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    flow = Driver(name, seed)
    for _ in range(3000):
        if random.random() < 0.003:
            flow.timeout()
            assert 1 <= flow.cwnd <= 2
            flow.sent += 1
        lost = int(random.integers(1, 6)) if random.random() < 0.02 else 0
        flow.ack(rtt_ms=20 + random.exponential(30), after_ms=random.exponential(3), lost=lost)
        assert 1 <= flow.cwnd < 1e5
        assert 0 <= flow.state[PACING] < np.inf


@pytest.mark.parametrize(
    ("name", "expected"),
    [("reno", [20, 40, 80]), ("copa", [20, 40, 80]), ("vegas", [20, 20, 40, 40, 80])],
)
def test_slow_start_doubles_per_round_or_every_other(name: str, expected: list[int]) -> None:
    flow = Driver(name)
    for window in expected:
        flow.round()
        assert flow.cwnd == window


@pytest.mark.parametrize("name", ["reno", "vegas", "ledbat"])
def test_a_loss_halves_once_per_window_and_a_timeout_starts_anew(name: str) -> None:
    flow = linear(name, 50)
    for _ in range(2):
        flow.ack(lost=1)
        assert flow.cwnd == pytest.approx(25, abs=0.1)
    flow.fill(50)
    for _ in range(2):  # the second one holds the threshold
        flow.timeout()
        assert (flow.cwnd, flow.state[SSTHRESH]) == (1, 25)
    flow = Driver(name)
    flow.fill(3)
    flow.ack(lost=1)
    assert flow.cwnd == 2


@pytest.mark.parametrize(
    ("name", "least"), [("reno", 25), ("cubic", 35), ("vegas", 25), ("ledbat", 25)]
)
def test_a_mark_counts_once_a_round_trip_as_a_loss_does(name: str, least: float) -> None:
    flow = linear(name, 50)
    flow.ack(marked=1)
    assert flow.cwnd == least
    # What was sent before the window fell says nothing new, and a marked ACK lets none grow.
    end = flow.sent
    while flow.seq < end - 1:
        before = flow.cwnd
        flow.ack(marked=1)
        assert least <= flow.cwnd <= before + (name == "ledbat")
    # The next packet was sent afterwards.
    before = flow.cwnd
    flow.ack(marked=1)
    assert flow.cwnd == pytest.approx(before * least / 50, rel=0.05)
    # An old loss and a new mark on one ACK: the mark counts.
    flow = linear(name, 50)
    flow.ack(lost=1)
    flow.ack(lost=flow.sent - flow.seq - 1, marked=1)
    assert flow.cwnd == pytest.approx(least * least / 50, rel=0.05)


@pytest.mark.parametrize("name", ["bbr", "copa", "fixed"])
def test_schemes_whose_rule_is_not_loss_ignore_a_mark(name: str) -> None:
    marked, clean = Driver(name), Driver(name)
    for k in range(200):
        marked.ack(marked=k % 3 == 0)
        clean.ack()
    assert marked.cwnd == clean.cwnd


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_link_that_delivers_nothing_leaves_a_probe(name: str) -> None:
    (flow,) = run(name, seconds=20, limit=50, loss=1.0)
    assert flow.samples == []
    assert flow.cwnd <= 2


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize(("rate", "rtt_ms", "seconds"), [(400, 100, 9), (8000, 10, 4.5)])
def test_fills_a_clean_link(name: str, rate: float, rtt_ms: float, seconds: float) -> None:
    mbps, limit = rate * PACKET_BYTES * 8e-6, max(int(rate * rtt_ms / 1000), 10)
    link = Link(rate_mbps=mbps, delay_ms=rtt_ms / 2, queue_packets=limit)
    (flow,) = simulate(link, name, seconds=seconds)
    assert flow.throughput_mbps[flow.time_s > seconds * 2 / 3].mean() > 0.85 * mbps


@pytest.mark.parametrize("name", ["agent", "oracle", "renoo"])
def test_a_scheme_without_compiled_functions_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown scheme '{name}'.*valid: fixed, reno"):
        SchemeController(name)


@pytest.mark.parametrize("name", COMPILED)
def test_a_flow_that_starts_later_than_was_known_is_as_if_it_had_been(name: str) -> None:
    late, known = (
        SchemeController(name, now=now, seed=3, parameter=25) for now in (7, 9_000_000_000)
    )
    late.on_ack(Ack(10_000_000, 0, 10, 1, 9, 1, 0, 100.0), now=10_000_000)
    late.begin(now=9_000_000_000)
    assert np.array_equal(late.state, known.state)
