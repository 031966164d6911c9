"""Code of a user's that ends the process, never returns, or returns arrays of another shape."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from distrlcc.cli import plugin_checks  # loaded once, for all checks
from distrlcc.cli.main import main
from distrlcc.processes import descendants

TINY = """num_envs=2 ppo.rollout_length=8 ppo.sequence_length=8 ppo.minibatch_size=16
    network.hidden=[8] env.episode_s=0.2 held_out.links=2 held_out.seconds=0.2 total_steps=64
    env.suites=["random"] env.suite_weights=[]"""
HEAD = """
import os, sys, time
import numpy as np
import torch
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import ScaleFree
from distrlcc.learn.ppo import PPO
from distrlcc.sim.suites import SUITES
def bad():
    {bad}
"""
assert plugin_checks
KINDS = {
    "reward": "def it(stats, link, config):\n    bad()",
    "observation": "class it(ScaleFree):\n    def observe(self, stats):\n        bad()",
    "action": "class it(type(ACTIONS['fine'])):\n"
    "    def __init__(self): super().__init__((0.5, 1.0, 2.0), (0.0,) * 3)\n"
    "    def apply(self, actions, cwnd, pacing):\n        bad()",
    "suite": "def it(split, index):\n    bad()",
    "learner": "class it(PPO):\n    def update(self, batch):\n        bad()",
    "explorer": "def it(values):\n    bad()",
    "stopper": "def it(report):\n    bad()",
}
"""A function or class of each kind that calls something bad when it is used."""
ENDS = {
    "os._exit": ("os._exit(3)", "os._exit(3)"),
    "os.abort": ("os.abort()", "os.abort()"),
    "sys.exit": ("sys.exit(3)", "SystemExit"),
    "kill": ("os.kill(os.getpid(), 9)", "it ended its process (signal SIGKILL)"),
}


def _write(tmp_path: Path, kind: str, bad: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD.format(bad=bad)}\n{KINDS[kind]}\n")
    return f"{path}:it"


def _few(names: object, *quick: str) -> list[object]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.long) for n in list(names)]  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", _few(KINDS, "reward", "explorer"))
def test_a_check_of_what_never_returns_ends(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=2")
    before = {process.pid for process in descendants(os.getpid())}
    for bad in ("while True: pass", "os.system('sleep 1000')"):
        reference = _write(tmp_path, kind, bad)
        assert main(["check", "plugin", reference, "--contract", kind]) == 2
        said = capsys.readouterr().err.splitlines()
        assert "it has not returned for 2 s" in said[-1], said
    assert {process.pid for process in descendants(os.getpid())} <= before


def test_a_check_of_an_endless_scheme_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code holds the interpreter, so that no thread of the process can end it."""
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=6")
    path = tmp_path / "mine.py"
    example = Path(__file__).parents[2] / "examples" / "plugins" / "scheme.py"
    path.write_text(
        re.sub(
            r"(def on_ack.*\n)", r"\1    while True:\n        s[8] += 1.0\n", example.read_text()
        )
    )
    assert main(["check", "plugin", f"{path}:near"]) == 2
    assert "it has not returned for 6 s" in capsys.readouterr().err


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", _few(KINDS, "reward"))
def test_a_check_of_what_ends_the_process_says_so(
    kind: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, said = ENDS[end]
    reference = _write(tmp_path, kind, bad)
    assert main(["check", "plugin", reference, "--contract", kind]) in (1, 2)
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("end", ["os._exit", "os.abort"])
def test_a_run_that_the_code_ends_says_where(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = _write(tmp_path, "reward", ENDS[end][0])
    words = ["--set", *TINY.split(), f"env.reward.name={reference}"]
    assert main(["train", "quickstart", "--out", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err
    assert "mine.py, line 10: it ends the process" in said
    assert not (tmp_path / "run").exists()


SHAPES = {
    "reward": ["np.ones(1)", "np.ones((2, 1))", "1.0", "np.ones(3)"],
    "observation": ["np.ones((1, 20))", "np.ones((2, 1))", "np.ones(20)"],
    "action": ["(np.ones(1), np.ones(1))", "(np.ones((2, 1)), np.ones((2, 1)))"],
    "learner": ["{'loss': np.ones(2)}", "{'loss': [1.0]}", "None"],
}
KEYS = {
    "reward": "env.reward.name",
    "observation": "env.observation",
    "action": "env.action",
    "learner": "learner",
}
CASES = [(kind, given) for kind, each in SHAPES.items() for given in each]


@pytest.mark.parametrize(("kind", "given"), CASES)
def test_training_refuses_another_shape(
    kind: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = _write(tmp_path, kind, f"return {given}")
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace(" bad()\n", " return bad()\n"))
    words = ["--set", *TINY.split(), f"{KEYS[kind]}={reference}"]
    assert main(["train", "quickstart", "--out", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{kind} mine.py:it returned" in said
    assert "expected" in said
