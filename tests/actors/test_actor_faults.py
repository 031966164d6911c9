"""A machine's workers freeze, hang and die over torch RPC, and updates are broken off."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from distrlcc.cli.main import main
from distrlcc.config import override, to_toml
from distrlcc.recipes.registry import recipe
from tests.actors.shared import SMALL, STOP_SECONDS, acting, told
from tests.hosts import rank_processes, wait_until
from tests.parallel.commands import Command, rows, updates

pytestmark = [pytest.mark.timeout(400)]

ENDLESS = """ppo.num_epochs=10000000 ppo.use_kl_loss=false ppo.rollout_length=64
    actors.envs_per_worker=1 held_out.links=2 held_out.seconds=1 ppo.minibatch_size=64"""
NODE = "node --node-index 0 --node-num 1 --IP 127.0.0.1 --port 29533 --nodes nodes.toml"
HANGS = """
import os, time
from distrlcc.env.rewards import distrlcc

def hangs(stats, link, config):
    while os.path.exists(f"hang{os.getpid()}"):
        time.sleep(0.05)
    return distrlcc(stats, link, config)
"""
"""A reward: a step hangs while a file bears its process's number."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder with a machine's plan."""
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "nodes.toml").write_text("nodes = [[0, 1, 'random']]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=8")


def _start(*words: str, settings: str = SMALL) -> Command:
    """Start one machine's whole run, on loopback."""
    keys = ("--set", *settings.split(), "actors.segments_per_update=2")
    keys += ("env.reward.name=./hangs.py:hangs",)
    return Command(Path(), "-m", "distrlcc", *NODE.split(), "--no-tensorboard", *words, *keys)


def test_workers_hang_freeze_and_die_and_load_finds_the_run() -> None:
    out = Path("runs/first")
    with _start("--out", str(out)) as run:
        wait_until(acting(out, 3), 90.0, "all workers act")
        _, *workers = rank_processes(run.process.pid)
        Path(f"hang{workers[0]}").touch()
        wait_until(told(out, "gone: worker 0", "hangs for"), 60.0, "the one that hangs")
        before = len(rows(out))
        wait_until(lambda: len(rows(out)) > before + 5, 60.0, "training goes on")

        # One is frozen, and not noticed yet when the user stops the run.
        os.kill(workers[1], signal.SIGSTOP)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(STOP_SECONDS) == 130, run.said
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        assert f"--load {out}" in run.said[-1]
    done, config = updates(out)[-1], (out / "config.toml").read_text()

    # Without a folder the newest run of the recipe goes on as it began; all its workers die.
    with _start("--load", "--wait-workers", "2", settings="") as run:
        wait_until(lambda: updates(out)[-1] > done, 90.0, "going on")
        wait_until(lambda: rows(out)[-1]["workers"] == 3.0, 60.0, "all workers")
        for pid in rank_processes(run.process.pid)[1:]:
            os.kill(pid, signal.SIGKILL)
        assert run.process.wait(STOP_SECONDS) == 3
        assert any("no worker is left for 2 s; saved after update" in line for line in run.said)
    assert updates(out) == list(range(1, len(updates(out)) + 1))
    waits = re.compile("wait_workers = .*")
    assert waits.sub("", (out / "config.toml").read_text()) == waits.sub("", config)


def test_a_run_goes_on_with_its_own_settings_and_with_more_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = recipe("distrlcc").actors.nodes
    settings = ["total_steps=12345", f"actors.nodes={[list(lists[0])]}"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(override(recipe("distrlcc"), settings)))
    seen: list[Any] = []
    monkeypatch.setattr("distrlcc.actors.start.start_actors", lambda c, *_: seen.append(c) or 0)
    words = ["--node-index", "0", "--node-num", "3", "--ip", "127.0.0.1", "--load", "run"]
    for name in ([], ["distrlcc"]):
        assert main(["node", *name, *words]) == 0
    assert [(c.total_steps, c.actors.nodes) for c in seen] == [(12345, lists[:3])] * 2


def test_an_update_without_end_is_broken_off() -> None:
    out = Path("runs/first")
    with _start("quickstart", "--out", str(out), settings=ENDLESS) as run:
        wait_until(lambda: bool(rows(out, "workers.jsonl")), 90.0, "workers act")
        time.sleep(1.5)
        assert not any("--load" in line for line in run.said)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(STOP_SECONDS) == 130, run.said
        assert not rows(out)  # no update was finished
        assert "--load" in run.said[-1]
