from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController, initialise, on_ack, on_timeout, scheme_id
from distrlcc.control.state import CWND, PACING, STATE_SIZE
from distrlcc.errors import ConfigError
from distrlcc.types import Ack

COMPILED = ["fixed", "reno", "cubic", "vegas", "copa", "bbr", "ledbat"]


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
