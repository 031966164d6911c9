"""The shipped policy on paths that it does not hold, with the guard as it ships, and without."""

from dataclasses import replace

import numpy as np
import pytest

from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.runner import evaluate
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.sim.suites import load_suite

NOISY = [
    Scenario("noisy", Link(50.0, delay_ms=10.0, queue_packets=150, jitter_ms=j, ack_jitter_ms=j))
    for j in (8.0, 20.0)
]


def test_one_uses_noisy_links_with_its_guard_and_alone() -> None:
    one = contender_from_file("one")
    used = {
        always: evaluate(replace(one, always=always), NOISY)[0].figures["utilisation"]
        for always in (False, True)
    }
    assert used[False].min() > 0.7
    assert used[True].min() > 0.6


@pytest.mark.parametrize("suite", ["random", "dynamic", "shallow"])
def test_one_is_left_alone_where_it_is_good(suite: str) -> None:
    one, scenarios = contender_from_file("one"), load_suite(suite).scenarios("validation", 12)
    shown = [
        evaluate(replace(one, always=always), scenarios)[0].figures for always in (False, True)
    ]
    for name, values in shown[0].items():
        assert np.array_equal(values, shown[1][name], equal_nan=True), name
