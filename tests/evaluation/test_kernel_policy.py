"""Shipped policies act in the kernel as in floating point, on links of each kind."""

from __future__ import annotations

import pytest

from distrlcc.cli.main import main
from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.kernel_policy import kernel_policy, same_action
from distrlcc.net.kernel.trial import Trial
from distrlcc.sim.suites import load_suite

SUITES = ("random", "dynamic", "cellular", "shared-4")
GUARDED = ("slow", "long")
POLICIES = ["one", "dagger", "preference", "cloning", "gail", "indigo", "aurora", "genet"]
LEAST = 0.999
pytestmark = pytest.mark.net


def same(trial: Trial, name: str, suite: str, links: int, seconds: float) -> float:
    contender, scenarios = contender_from_file(name), load_suite(suite).scenarios("test", links)
    trial.policies[0] = kernel_policy(contender)
    share, decisions = same_action(contender, trial, scenarios, seconds)
    assert decisions > 1000
    return share


@pytest.mark.parametrize("suite", SUITES + GUARDED)
def test_the_same_action_follows_in_the_kernel(trial: Trial, suite: str) -> None:
    assert same(trial, "dagger", suite, 6, 4.0) >= LEAST


def test_the_command_finds_that_one_fits(
    trial: Trial, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["kernel", "check", "one"]) == 0
    assert "\none fits; " in capsys.readouterr().out
    monkeypatch.setattr("distrlcc.cli.kernel._SUITES", ("random", "dynamic"))
    monkeypatch.setattr("distrlcc.evaluation.kernel_policy.SAME_WINDOW", -1.0)
    assert main(["kernel", "check", "dagger"]) == 1
    assert "\ndagger decides otherwise on random, dynamic" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", POLICIES)
def test_the_same_action_follows_from_every_policy(trial: Trial, name: str, suite: str) -> None:
    assert same(trial, name, suite, 16, 10.0) >= LEAST


def test_distrlccs_state_is_chaotic(trial: Trial) -> None:
    """Its actions part within whole numbers, as they do between float32 and float64 (98.2%)."""
    assert 0.95 < same(trial, "distrlcc", "dynamic", 8, 8.0) < LEAST
