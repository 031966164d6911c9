"""Rank 0 stops in the middle of a scoring: what it has not written the next one writes, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distrlcc.policy.policy_file import load_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Every third update is scored, for about a second; an update takes less than a tenth.
WORDS = (
    "train", "quickstart", "--processes", "2", "--no-tensorboard", "--set", "num_envs=16",
    "ppo.rollout_length=16", "ppo.minibatch_size=128", "network.hidden=[8]", "max_seconds=600",
    "held_out.every=30", "held_out.links=64", "held_out.seconds=20", "checkpoint_every=1",
    "distributed.straggler_share=0",
)  # fmt: skip
SCORED = 30


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "distrlcc", *WORDS, "--out", str(tmp_path / "out")],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    yield process, tmp_path / "out"
    process.kill()
    process.wait(20)


def _at_a_scoring(folder: Path) -> int:
    """Wait until rank 0 scores, and return the update whose scores are not there yet."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        rows = _rows(folder)
        if rows and rows[-1]["update"] % SCORED == 0 and "held_out_reward_argmax" not in rows[-1]:
            return int(rows[-1]["update"])
        time.sleep(0.005)
    raise AssertionError(f"no scoring: {rows[-1:]}")


def _grown(folder: Path, update: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not any(row["update"] >= update for row in _rows(folder)):
        assert time.monotonic() < deadline, _rows(folder)[-1:]
        time.sleep(0.05)


@pytest.mark.parametrize(
    "kind", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_no_update_is_lost_or_written_twice(
    run: tuple[subprocess.Popen[bytes], Path], conftest: Any, kind: signal.Signals
) -> None:
    process, folder = run
    _grown(folder, 5, 120.0)
    leader = conftest.rank_processes(process.pid)[0]
    update = _at_a_scoring(folder)
    os.kill(leader, kind)
    _grown(folder, update + 5)  # the other goes on
    if kind == signal.SIGSTOP:
        os.kill(leader, signal.SIGCONT)
        time.sleep(4.0)  # its scoring ends, and it joins again
    _grown(folder, _rows(folder)[-1]["update"] + 5)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    rows = _rows(folder)
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    gone = [event for row in rows for event in row.get("events", []) if "gone: rank 0" in event]
    assert len(gone) == 1
    if kind == signal.SIGSTOP:
        joined = [e for row in rows for e in row.get("events", []) if "joined: rank 0" in e]
        assert len(joined) == 1
    assert 0 < load_policy(folder / "policy.safetensors").notes["update"] <= len(rows)
