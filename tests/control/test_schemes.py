"""Every scheme and controller: numbers, sound windows, full links; and the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distrlcc.control import schemes
from distrlcc.control.base import Controller, Oracle
from distrlcc.control.schemes import (
    SCHEMES,
    SchemeController,
    initialise,
    on_ack,
    on_timeout,
    scheme_id,
)
from distrlcc.control.state import CWND, INITIAL_CWND, PACING, STATE_SIZE
from distrlcc.errors import ConfigError
from distrlcc.types import PACKET_BYTES, Ack

COMPILED = ["fixed", "reno", "cubic", "vegas", "copa", "bbr", "ledbat"]
ADAPTIVE = COMPILED[1:]


def test_numbers_are_fixed() -> None:
    assert list(SCHEMES.values()) == list(range(9))
    assert (schemes.AGENT, schemes.ORACLE, schemes.FIXED, schemes.LEDBAT) == (0, 1, 2, 8)
    assert scheme_id("cubic") == schemes.CUBIC == 4


def test_an_unknown_name_lists_the_near_ones_first() -> None:
    with pytest.raises(ConfigError, match=r"unknown scheme 'cubik': did you mean cubic\?.*ledbat"):
        scheme_id("cubik")


@pytest.mark.parametrize("name", SCHEMES)
def test_initialise_clears_the_row_and_sets_the_initial_window(name: Any) -> None:
    dirty, clean = np.full(STATE_SIZE, 7.5), np.zeros(STATE_SIZE)
    for row in (dirty, clean):
        initialise(scheme_id(name), row, 5, 9, INITIAL_CWND)
    assert np.array_equal(dirty, clean)
    assert clean[CWND] == INITIAL_CWND
    assert (clean[PACING] > 0) == (name == "bbr")


def test_fixed_keeps_its_parameter() -> None:
    flow = SchemeController("fixed", parameter=33)
    on_ack(schemes.FIXED, flow.state, 5, 5, 9, 10, 4, 0, 1, 0, 1.0)
    on_timeout(schemes.FIXED, flow.state, 5, 10)
    assert (flow.cwnd, flow.pacing_rate) == (33, 0)


@pytest.mark.parametrize("name", ["agent", "oracle"])
def test_schemes_set_from_outside_are_left_alone(name: Any) -> None:
    row = np.zeros(STATE_SIZE)
    initialise(scheme_id(name), row, 0, 0, 50.0)
    before = row.copy()
    on_ack(scheme_id(name), row, 5, 5, 9, 10, 4, 0, 1, 0, 1.0)
    on_timeout(scheme_id(name), row, 5, 10)
    assert np.array_equal(row, before)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("seed", range(3))
def test_window_and_pacing_stay_sound_whatever_arrives(driver: Any, name: Any, seed: Any) -> None:
    random = np.random.default_rng(seed)
    flow = driver(name, seed)
    for _ in range(3000):
        if random.random() < 0.003:
            flow.timeout()
            flow.sent += 1
        lost = int(random.integers(1, 6)) if random.random() < 0.02 else 0
        flow.ack(rtt_ms=20 + random.exponential(30), after_ms=random.exponential(3), lost=lost)
        assert np.isfinite(flow.cwnd)
        assert 1 <= flow.cwnd < 1e5
        assert np.isfinite(flow.state[PACING])
        assert flow.state[PACING] >= 0


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_timeout_leaves_at_most_two_packets(driver: Any, name: Any) -> None:
    flow = driver(name)
    for _ in range(4):
        flow.round()
    flow.timeout()
    assert 1 <= flow.cwnd <= 2


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_link_that_delivers_nothing_sees_one_probe_per_second(link: Any, name: Any) -> None:
    flow = SchemeController(name)
    (samples,) = link(rate=1000, rtt_ms=40, limit=50, loss=1.0).run([flow], 20)
    assert samples == []
    assert flow.cwnd <= 2


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize(("rate", "rtt_ms"), [(400, 100), (8000, 10)])
def test_fills_a_clean_link(link: Any, after: Any, name: Any, rate: Any, rtt_ms: Any) -> None:
    limit = max(int(rate * rtt_ms / 1000), 10)
    (samples,) = link(rate=rate, rtt_ms=rtt_ms, limit=limit).run([SchemeController(name)], 9)
    assert len(after(samples, 6)) > 0.85 * rate * 3


@pytest.mark.parametrize("name", COMPILED)
def test_same_windows_as_the_compiled_functions(name: Any) -> None:
    random = np.random.default_rng(4)
    number, row = scheme_id(name), np.zeros(STATE_SIZE)
    initialise(number, row, 100, 3, 25.0)
    controller: Controller = SchemeController(name, now=100, seed=3, parameter=25)
    now, seq = 100, -1
    for i in range(2000):
        now += int(random.integers(1, 3_000_000))
        if i % 700 == 699:
            on_timeout(number, row, now, seq + 30)
            controller.on_timeout(now=now, sent=seq + 30)
        lost = int(random.random() < 0.01)
        seq += 1 + lost
        rtt = int(random.integers(20_000_000, 40_000_000))
        ack = Ack(rtt, seq, seq + 30, lost, 29, i + 1, max(i - 29, 0), 30e9 / rtt)
        on_ack(number, row, now, rtt, seq, seq + 30, lost, 29, i + 1, max(i - 29, 0), 30e9 / rtt)
        controller.on_ack(ack, now=now)
        assert (controller.cwnd, controller.pacing_rate) == (row[CWND], row[PACING])


@pytest.mark.parametrize("name", ["agent", "oracle", "renoo"])
def test_a_scheme_without_compiled_functions_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=f"unknown scheme '{name}'.*valid: fixed, reno"):
        SchemeController(name)


@pytest.mark.parametrize("name", COMPILED)
def test_a_flow_that_starts_later_than_was_known_is_as_if_it_had_been(name: Any) -> None:
    late, known = (
        SchemeController(name, now=7, seed=3, parameter=25),
        SchemeController(name, now=9_000_000_000, seed=3, parameter=25),
    )
    late.on_ack(Ack(10_000_000, 0, 10, 1, 9, 1, 0, 100.0), now=10_000_000)
    late.begin(now=9_000_000_000)
    assert np.array_equal(late.state, known.state)


def ack(rtt_ms: Any) -> Any:
    return Ack(round(rtt_ms * 1e6), 0, 1, 0, 0, 1, 0, 0.0)


def test_holds_rate_times_its_least_rtt() -> None:
    oracle: Controller = Oracle(rate_bps=1000 * PACKET_BYTES * 8)
    assert oracle.cwnd == 10
    oracle.on_ack(ack(50), now=0)
    assert oracle.cwnd == 50
    oracle.on_ack(ack(39.5), now=0)
    assert oracle.cwnd == 40
    oracle.on_ack(ack(80), now=0)
    oracle.on_timeout(now=0, sent=3)
    assert oracle.cwnd == 40
    assert oracle.pacing_rate == 0


def test_never_holds_fewer_than_two() -> None:
    oracle = Oracle(rate_bps=8 * PACKET_BYTES)
    oracle.on_ack(ack(10), now=0)
    assert oracle.cwnd == 2


def test_follows_a_new_rate() -> None:
    oracle = Oracle(rate_bps=1000 * PACKET_BYTES * 8)
    oracle.on_ack(ack(40), now=0)
    oracle.rate_bps *= 2
    assert oracle.cwnd == 80


def test_full_rate_without_a_queue(link: Any, after: Any) -> None:
    oracle = Oracle(rate_bps=1000 * PACKET_BYTES * 8)
    (samples,) = link(rate=1000, rtt_ms=39, limit=100).run([oracle], 5)
    steady = after(samples, 1)
    assert len(steady) >= 0.999 * 1000 * 4
    assert max(sample.rtt for sample in steady) <= 40_000_000
