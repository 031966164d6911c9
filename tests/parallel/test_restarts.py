"""Runs whose ranks are killed and started again, by distrlcc's own launcher and by torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.runs.checkpoint import load_checkpoint

PPO = (
    "num_envs=4", "checkpoint_every=5", "held_out.every=1000", "held_out.links=2",
    "held_out.seconds=0.3", "env.episode_s=0.5", "network.hidden=[8]", "ppo.rollout_length=16",
    "ppo.minibatch_size=64", "distributed.straggler_share=0",
)  # fmt: skip
UPDATE = 4 * 16
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "--monitor-interval", "0.1")  # fmt: skip
LONG = f"total_steps={10**9}"


class Run:
    """A command in a session of its own."""

    def __init__(self, out: Path, *words: str) -> None:
        self.out = out
        self.log = out.with_name("log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def updates(self) -> list[int]:
        path = self.out / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line)["update"] for line in path.read_text().splitlines(True)
                if line.endswith("\n")]  # fmt: skip

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(x) for x in (self.out / "metrics.jsonl").read_text().splitlines()]

    def wait_for(self, least: int) -> None:
        """Wait until the run has done some updates."""
        deadline = time.monotonic() + 90
        while len(self.updates()) < least:
            assert self.process.poll() is None, "\n".join(self.lines())
            assert time.monotonic() < deadline, self.lines()
            time.sleep(0.02)

    def end(self, seconds: float) -> int:
        return self.process.wait(seconds)

    def nothing_is_left(self) -> None:
        deadline = time.monotonic() + 5
        while members := _session(self.process.pid):
            assert time.monotonic() < deadline, members
            time.sleep(0.05)

    def close(self) -> None:
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)


def _session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def _started(out: Path, *words: str) -> Iterator[Run]:
    run = Run(out, *words)
    try:
        yield run
    finally:
        run.close()


def _train(out: Path, *words: str) -> tuple[str, ...]:
    return ("-m", "distrlcc", "train", "--no-tensorboard", "--out", str(out), *words)


@pytest.mark.long
@pytest.mark.slow
def test_without_elasticity_a_death_ends_all_or_all_resume(
    tmp_path: Path, conftest: ModuleType
) -> None:
    out = tmp_path / "run"
    words = ("quickstart", "--processes", "2", "--no-elastic", "--restarts", "1", "--set", *PPO)
    with _started(out, *_train(out, *words, LONG)) as run:
        # Before the first checkpoint: all begin again, and no update is told of twice.
        run.wait_for(1)
        first, second = conftest.rank_processes(run.process.pid)
        os.kill(second, signal.SIGKILL)
        conftest.wait_until(
            lambda: len(set(conftest.rank_processes(run.process.pid)) - {first, second}) == 2,
            30, "all are started again",
        )  # fmt: skip
        run.wait_for(12)
        os.kill(conftest.rank_processes(run.process.pid)[0], signal.SIGKILL)
        assert run.end(30) == 3
        run.nothing_is_left()
        told = [line for line in run.lines() if line.startswith("distrlcc: ")]
        assert len(told) == 2
        assert told[0] == (
            f"distrlcc: rank 1 (process {second}) was killed by SIGKILL; "
            "starting all again from the last checkpoint"
        )
        assert told[1].startswith("distrlcc: error: rank 0 (process ")
        assert told[1].endswith("was killed by SIGKILL")
        assert run.updates() == list(range(1, len(run.updates()) + 1))


@pytest.mark.long
@pytest.mark.slow
def test_with_elasticity_the_dead_are_started_again(tmp_path: Path, conftest: ModuleType) -> None:
    out = tmp_path / "run"
    words = ("quickstart", "--processes", "2", "--restarts", "2", "--set", *PPO, LONG)
    with _started(out, *_train(out, *words)) as run:
        run.wait_for(7)
        first, second = conftest.rank_processes(run.process.pid)
        os.kill(second, signal.SIGKILL)
        conftest.wait_until(
            lambda: any("joined" in str(line.get("events")) for line in run.metrics()),
            40, "rank 1 is back",
        )  # fmt: skip
        # All at once: nobody holds the weights, so that rank 0 begins at the last checkpoint.
        before = len(run.updates())
        pids = conftest.rank_processes(run.process.pid)
        assert first in pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        conftest.wait_until(lambda: len(run.lines()) >= 2, 20, "the deaths are told")
        time.sleep(1.0)
        run.wait_for(before + 20)
        run.process.send_signal(signal.SIGTERM)
        assert run.end(40) == 143
        run.nothing_is_left()
        assert run.updates() == list(range(1, len(run.updates()) + 1))
        counters = load_checkpoint(out / "checkpoints" / "latest.safetensors")["counters"]
        assert counters["update"] == len(run.updates())
        assert run.metrics()[-1]["steps"] == counters["steps"]
        assert any(line.startswith(f"gone: rank 1 (process {second} ") for line in run.lines())


@pytest.mark.long
@pytest.mark.slow
def test_torchrun_trains_says_it_once_and_starts_again(
    tmp_path: Path, conftest: ModuleType
) -> None:
    out = tmp_path / "run"
    words = _train(out, "quickstart", "--set", *PPO, f"total_steps={60 * UPDATE}")
    with _started(out, *TORCHRUN, "--max-restarts", "1", *words) as run:
        run.wait_for(12)
        ranks = conftest.descendants(run.process.pid)
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        conftest.wait_until(
            lambda: len(set(conftest.descendants(run.process.pid)) - set(ranks)) == 2,
            60, "both are started again",
        )  # fmt: skip
        ranks += conftest.descendants(run.process.pid)
        assert run.end(90) == 0, run.lines()
        assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
        run.nothing_is_left()
        assert run.updates() == list(range(1, 61))
        assert run.metrics()[-1]["steps"] == 60 * UPDATE
        assert sum(line.startswith("held-out links: ") for line in run.lines()) == 1
        assert sum(line.startswith("policy: ") for line in run.lines()) == 1
        assert len(json.loads((out / "versions.json").read_text())["resumed"]) == 1
        assert NumpyPolicy.load(out / "policy.safetensors").notes["steps"] == 60 * UPDATE


@pytest.mark.slow
def test_torchrun_with_a_bad_config_says_one_line_for_each_rank(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with _started(out, *TORCHRUN, *_train(out, "quickstart", "--set", "ppo.lrr=1")) as run:
        assert run.end(60) != 0
        said = [line for line in run.lines() if "distrlcc: error: " in line]
        assert 1 <= len(said) <= 2  # torchrun ends the other as soon as one has ended
        assert all("ppo.lr" in line for line in said)
        assert not out.exists()
        run.nothing_is_left()
