"""Shipped policies act in whole numbers as in floating point, on links of each kind."""

from __future__ import annotations

import pytest

from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.kernel_policy import same_action
from distrlcc.sim.suites import load_suite

SUITES = ("random", "dynamic", "cellular", "shared-4")
GUARDED = ("slow", "long")
POLICIES = ["one", "dagger", "preference", "cloning", "gail", "indigo", "aurora", "genet"]
LEAST = 0.999


@pytest.mark.parametrize(
    "suite",
    [
        s if s in ("dynamic", "slow") else pytest.param(s, marks=pytest.mark.long)
        for s in SUITES + GUARDED
    ],
)
@pytest.mark.parametrize("name", ["one", "dagger"])
def test_the_same_action_follows_in_whole_numbers(name: str, suite: str) -> None:
    scenarios = load_suite(suite).scenarios("test", 6)
    share, decisions = same_action(contender_from_file(name), scenarios, 4.0)
    assert decisions > 1000
    assert share >= LEAST


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", POLICIES)
def test_the_same_action_follows_from_every_policy(name: str, suite: str) -> None:
    scenarios = load_suite(suite).scenarios("test", 16)
    assert same_action(contender_from_file(name), scenarios, 10.0)[0] >= LEAST


@pytest.mark.long
def test_distrlccs_state_is_chaotic() -> None:
    """Its actions part within whole numbers, as they do between float32 and float64 (98.2%)."""
    scenarios = load_suite("dynamic").scenarios("test", 8)
    assert 0.95 < same_action(contender_from_file("distrlcc"), scenarios, 8.0)[0] < LEAST
