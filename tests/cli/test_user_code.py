"""Code of a user's that ends the process, never returns, or returns arrays of another shape."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distrlcc.cli import plugin_checks  # noqa: F401  # loaded once, for all checks
from distrlcc.cli.main import main
from distrlcc.processes import descendants
from tests.hosts import wait_until

TINY = """num_envs=2 ppo.rollout_length=8 ppo.minibatch_size=16
    network.hidden=[8] env.episode_s=0.2 held_out.links=2 held_out.seconds=0.2 total_steps=64
    env.suites=["random"] env.suite_weights=[]"""
HEAD = """
import faulthandler, os, sys, time
faulthandler.disable()  # pytest's
import numpy as np
import torch
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import ScaleFree
from distrlcc.learn.ppo import PPO
from distrlcc.sim.suites import SUITES
def bad():
    {bad}
"""
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
KEYS = {
    "reward": "env.reward.name",
    "observation": "env.observation",
    "action": "env.action",
    "learner": "learner",
}
ENDS = {
    "os._exit": ("os._exit(3)", "os._exit(3)"),
    "os.abort": ("os.abort()", "os.abort()"),
    "sys.exit": ("sys.exit(3)", "SystemExit"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "the process was ended by signal SIGKILL"),
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "the process was ended by signal SIGSEGV"),
    "real-time": ("os.kill(os.getpid(), 40)", "the process was ended by signal 40"),
    "_exit": ("import ctypes; ctypes.CDLL(None)._exit(0)", "was ended with exit code 0"),
}
"""How code ends its process, and what is said; the last ones leave Python no time to say it."""


def _write(tmp_path: Path, kind: str, bad: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD.format(bad=bad)}\n{KINDS[kind]}\n")
    return f"{path}:it"


def _few(names: object, *quick: str) -> list[object]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.long) for n in list(names)]  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", _few(KINDS, "reward"))
def test_a_check_of_what_never_returns_ends(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "start=8")
    before = {process.pid for process in descendants(os.getpid())}
    for bad in ("while True: pass", "os.system('sleep 1000')"):
        reference = _write(tmp_path, kind, bad)
        assert main(["check", "plugin", reference, "--contract", kind]) == 2
        said = capfd.readouterr().err.splitlines()
        assert said[0].startswith(f"checking {kind} {reference}, after compiling what"), said
        assert "it has not returned for 8 s" in said[-1], said
    assert {process.pid for process in descendants(os.getpid())} <= before


def test_a_check_of_an_endless_scheme_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code holds the interpreter, so that no thread of the process can end it."""
    monkeypatch.setenv("DISTRLCC_LIMITS", "start=15")
    path = tmp_path / "mine.py"
    example = Path(__file__).parents[2] / "examples" / "plugins" / "scheme.py"
    path.write_text(
        re.sub(
            r"(def on_ack.*\n)", r"\1    while True:\n        s[8] += 1.0\n", example.read_text()
        )
    )
    assert main(["check", "plugin", f"{path}:near"]) == 2
    assert "it has not returned for 15 s" in capsys.readouterr().err


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", _few(KINDS, "reward"))
def test_a_check_of_what_ends_the_process_says_so(
    kind: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, said = ENDS[end]
    reference = _write(tmp_path, kind, bad)
    assert main(["check", "plugin", reference, "--contract", kind]) in (1, 2)
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("kind", "end"), [("reward", e) for e in ENDS] + [(k, "SIGSEGV") for k in KEYS if k != "reward"]
)
def test_a_run_that_the_code_ends_is_one_line_with_its_name(
    kind: str, end: str, tmp_path: Path
) -> None:
    """Only a process of its own shows it, as it ends."""
    reference = _write(tmp_path, kind, ENDS[end][0])
    words = ["--out", str(tmp_path / "run"), "--set", *TINY.split(), f"{KEYS[kind]}={reference}"]
    ran = _run("train", "quickstart", *words)
    assert ran.returncode == 2, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "error: " in line]
    assert len(lines) == 1, ran.stderr
    by_name = (
        ENDS[end][1] if end not in ("os._exit", "os.abort", "sys.exit") else "ends the process"
    )
    assert by_name in lines[0]
    assert "mine.py" in lines[0]
    assert "Traceback" not in ran.stderr


def test_an_evaluation_passes_on_what_comes_and_what_its_code_does(tmp_path: Path) -> None:
    bad = "print('begun', flush=True); sys.stdin.readline(); os.kill(os.getpid(), {})"
    # A signal that came from outside is nobody's fault.
    reference = _write(tmp_path, "suite", bad.format(11))
    words = [sys.executable, "-m", "distrlcc", "evaluate", "cubic", "--suite", reference]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(words, text=True, **PIPES) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            children = descendants(process.pid)
            process.send_signal(number)
            process.wait(60)
            _, said = process.communicate(timeout=60)
        expected = {2: (130, "distrlcc: interrupted\n"), 15: (143, ""), 9: (-9, "")}[number]
        assert (process.returncode, said) == expected
        for child in children:  # it dies with who waits for it
            for _ in range(600):
                if not child.alive():
                    break
                time.sleep(0.1)
            assert not child.alive()
    # What the code does to itself is its own.
    ran = _run("evaluate", "cubic", "--suite", reference)
    assert ran.returncode == 2
    assert "was ended by signal SIGSEGV while it ran mine.py:it" in ran.stderr


PIPES: dict[str, Any] = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distrlcc", *words]
    return subprocess.run(
        command, input="\n", text=True, capture_output=True, timeout=300, check=False
    )


@pytest.mark.parametrize("end", ["os._exit", "os.abort"])
def test_a_run_that_the_code_ends_says_where(
    end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = _write(tmp_path, "reward", ENDS[end][0])
    words = ["--set", *TINY.split(), f"env.reward.name={reference}"]
    assert main(["train", "quickstart", "--out", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err
    assert "mine.py, line 11: it ends the process" in said
    assert not (tmp_path / "run").exists()


SHAPES = {
    "reward": ["np.ones(1)", "np.ones((2, 1))", "1.0", "np.ones(3)"],
    "observation": ["np.ones((1, 20))", "np.ones((2, 1))", "np.ones(20)"],
    "action": ["(np.ones(1), np.ones(1))", "(np.ones((2, 1)), np.ones((2, 1)))"],
    "learner": ["{'loss': np.ones(2)}", "{'loss': [1.0]}", "None"],
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


def test_a_command_that_is_stopped_goes_on_and_needs_no_terminal_of_its_own(tmp_path: Path) -> None:
    """Stopped as by Ctrl-Z, and its standard input is a terminal that it does not control."""
    reference = _write(tmp_path, "reward", "time.sleep(0.05)")
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace(" bad()\n", " bad(); return stats.acked * 0.0\n"))
    words = ["train", "quickstart", "--out", str(tmp_path / "run"), "--no-tensorboard", "--set"]
    tiny = TINY.replace("total_steps=64", "total_steps=640").split()
    words += [*tiny, f"env.reward.name={reference}"]
    master, terminal = os.openpty()
    command = [sys.executable, "-m", "distrlcc", *words]
    with subprocess.Popen(
        command, stdin=terminal, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        wait_until((tmp_path / "run").exists, 120.0, "the run begins")
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGCONT)
        said = process.stderr.read()
        assert process.wait(120) == 0, said
    os.close(master)
    os.close(terminal)
