"""Runs of real processes: killed, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.env.observations import OBSERVATIONS, ScaleFreeRecent
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.runs.checkpoint import load_checkpoint

SMALL = (
    "num_envs=16", "checkpoint_every=7", "held_out.every=25", "held_out.links=4",
    "held_out.seconds=0.3", "env.episode_s=0.5", "network.hidden=[16]",
)  # fmt: skip
PPO = (*SMALL, "ppo.rollout_length=16", "ppo.minibatch_size=64", "ppo.sequence_length=8")
DAGGER = (*SMALL, "dagger.rollout_length=16", "dagger.minibatch_size=256", "dagger.num_epochs=2")
UPDATE = 16 * 16
CASES = {
    "ppo": ("quickstart", PPO),
    "ppo-lstm": ("quickstart", (*PPO, "network.kind=lstm")),
    "dagger": ("imitation", DAGGER),
}


def _command(out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "distrlcc", "train", "--out", str(out), "--no-tensorboard",
            *words]  # fmt: skip


def _finish(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _start(command: list[str], out: Path, updates: int) -> subprocess.Popen[bytes]:
    """Start a run and wait until it has done some updates."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < updates:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.002)
    return process


def _state(out: Path) -> dict[str, object]:
    return load_checkpoint(out / "checkpoints" / "latest.safetensors")


def _assert_equal(a: object, b: object, place: str = "") -> None:
    if isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys(), place
        for key in a:
            if key not in ("seconds", "ring", "ring_used"):
                _assert_equal(a[key], b[key], f"{place}.{key}")
    elif hasattr(a, "shape"):
        np.testing.assert_array_equal(a, b, err_msg=place)  # NaNs are equal
    else:
        assert a == b, place


@pytest.mark.parametrize(
    "case", [c if c == "ppo-lstm" else pytest.param(c, marks=pytest.mark.long) for c in CASES]
)
def test_killed_and_resumed_is_bit_identical(case: str, tmp_path: Path) -> None:
    recipe, settings = CASES[case]
    updates = 30 if case == "dagger" else 80
    words = [recipe, "--set", *settings, f"total_steps={updates * UPDATE}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = _finish(_command(whole, *words))
    assert done.returncode == 0, done.stderr

    process = _start(_command(cut, *words), cut, 10)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=10) == -signal.SIGKILL
    resumed = _finish(_command(cut, "--resume"))
    assert resumed.returncode == 0, resumed.stderr

    _assert_equal(_state(whole), _state(cut))
    lines = [json.loads(line) for line in (cut / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == list(range(1, updates + 1))
    a, b = (NumpyPolicy.load(out / "policy.safetensors") for out in (whole, cut))
    assert a.notes == b.notes


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupt_saves_and_exits_with_its_code(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["quickstart", "--set", *PPO, "total_steps=100_000_000"]
    process = _start(_command(out, *words), out, 5)
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    counters = _state(out)["counters"]
    assert isinstance(counters, dict)
    assert counters["update"] >= 5
    assert NumpyPolicy.load(out / "policy.safetensors").spec.observation == "scale-free"
    assert not [p for p in out.rglob("*.tmp")]
    further = (counters["update"] + 2) * UPDATE
    assert _finish(_command(out, "--resume", "--set", f"total_steps={further}")).returncode == 0
    assert _state(out)["counters"]["update"] == counters["update"] + 2  # type: ignore[index]


def test_a_run_can_be_extended_but_not_changed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert _finish(
        _command(out, "quickstart", "--set", *PPO, f"total_steps={3 * UPDATE}")
    ).returncode == 0  # fmt: skip
    changed = _finish(_command(out, "--resume", "--set", "ppo.lr=0.5"))
    assert changed.returncode == 2
    assert "ppo.lr" in changed.stderr
    assert changed.stderr.count("\n") == 1
    again = _finish(_command(out, "quickstart"))
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert _state(out)["counters"]["update"] == 3  # type: ignore[index]


def test_the_same_seed_learns_the_same_and_another_does_not(tmp_path: Path) -> None:
    states = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        words = ["quickstart", "--seed", str(seed), "--set", *PPO, f"total_steps={4 * UPDATE}"]
        assert _finish(_command(tmp_path / name, *words)).returncode == 0
        states.append(_state(tmp_path / name)["learner"]["model"]["parameters"])  # type: ignore[index]
    assert np.array_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])


def test_a_run_needs_no_writable_home(tmp_path: Path) -> None:
    environment = os.environ | {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/none"}
    done = subprocess.run(
        _command(tmp_path / "r", "quickstart", "--set", *PPO, f"total_steps={UPDATE}"),
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = _start(_command(out, "quickstart", "--set", *PPO, "total_steps=100_000_000"), out, 12)
    second = _finish(_command(out, "--resume"))
    assert second.returncode == 2
    assert "trained by another process" in second.stderr
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 128 + signal.SIGTERM
    updates = [json.loads(x)["update"] for x in (out / "metrics.jsonl").read_text().splitlines()]
    assert updates == list(range(1, len(updates) + 1))


def test_a_resume_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["quickstart", "--set", *PPO, f"total_steps={3 * UPDATE}"]
    assert _finish(_command(out, *words)).returncode == 0
    done = _finish(_command(out, "--resume"))
    assert done.returncode == 2
    assert "has done 768 of 768 steps already" in done.stderr
    config = out / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.001", "lr = 0.007"))
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    refused = _finish(_command(out, "--resume", "--set", f"total_steps={9 * UPDATE}"))
    assert refused.returncode == 2
    assert "ppo.lr" in refused.stderr
    assert "total_steps" not in refused.stderr
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for path in (out / "checkpoints").iterdir():
        path.unlink()
    assert "no checkpoint" in _finish(_command(out, "--resume")).stderr


def test_a_checkpoint_of_another_versions_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--out", str(tmp_path / "run"), "--no-tensorboard"]
    assert main([*words, "quickstart", "--set", *PPO, f"total_steps={UPDATE}"]) == 0
    monkeypatch.setitem(OBSERVATIONS, "scale-free", ScaleFreeRecent)
    capsys.readouterr()
    assert main([*words, "--resume", "--set", f"total_steps={2 * UPDATE}"]) == 2
    assert "the checkpoint does not fit this learner" in capsys.readouterr().err
    monkeypatch.undo()
    assert main([*words, "--resume", "--set", f"total_steps={2 * UPDATE}"]) == 0
