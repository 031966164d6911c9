"""A machine's workers freeze, hang and die, and updates are broken off; over both engines."""

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

from distrlcc.cli.main import main
from distrlcc.config import override, to_toml
from distrlcc.recipes.registry import recipe
from tests.actors.shared import ENGINES, SMALL, STOP_SECONDS, acting, told
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


WITHOUT_RPC = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        own = name == "torch.distributed.rpc"
        return importlib.util.spec_from_loader(name, self) if own else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.is_available = lambda: False

sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize: this torch has no RPC."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a folder with a machine's plan."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_RPC)
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "nodes.toml").write_text("nodes = [[0, 1, 'random']]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=8")


def _start(*words: str, settings: str = SMALL, engine: str = "channel") -> Command:
    """Start one machine's whole run, on loopback; for the channel torch has no RPC there."""
    path = [str(Path.cwd())] * (engine == "channel") + [os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        keys = (*settings.split(), "actors.segments_per_update=2", f"actors.engine={engine}")
        keys += ("env.reward.name=./hangs.py:hangs",)
        line = (*NODE.split(), "--no-tensorboard", *words, "--set", *keys)
        return Command(Path(), "-m", "distrlcc", *line)


@ENGINES
def test_workers_hang_freeze_and_die_and_load_finds_the_run(engine: str) -> None:
    out = Path("runs/first")
    with _start("--out", str(out), engine=engine) as run:
        wait_until(acting(out, 3), 200.0, "all workers act")
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
    with _start("--load", "--wait-workers", "2", settings="", engine=engine) as run:
        run.until_updates(out, done + 1, 200.0)
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
    monkeypatch.setattr("distrlcc.actors.start.start_actors", lambda c, *_: seen.append(c) or 0)  # type: ignore[func-returns-value]
    words = ["--node-index", "0", "--node-num", "3", "--ip", "127.0.0.1", "--load", "run"]
    for name in ([], ["distrlcc"]):
        assert main(["node", *name, *words]) == 0
    assert [(c.total_steps, c.actors.nodes) for c in seen] == [(12345, lists[:3])] * 2


@pytest.mark.long
@ENGINES
def test_an_update_without_end_is_broken_off(engine: str) -> None:
    out = Path("runs/first")
    with _start("quickstart", "--out", str(out), settings=ENDLESS, engine=engine) as run:
        wait_until(lambda: bool(rows(out, "workers.jsonl")), 200.0, "workers act")
        time.sleep(1.5)
        assert not any("--load" in line for line in run.said)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(STOP_SECONDS) == 130, run.said
        assert not rows(out)  # no update was finished
        assert "--load" in run.said[-1]


def test_torch_rpc_is_refused_in_a_line_where_torch_has_none(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "distrlcc", *NODE.split(), "--out", "run", "--set"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = dict(os.environ, PYTHONPATH=path)
    line += ["actors.engine=torch-rpc"]
    found = subprocess.run(line, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert found.returncode == 2
    assert found.stderr == (
        "distrlcc: error: actors.engine=torch-rpc: the torch that is installed here has no RPC; "
        "leave the key away\n"
    )
    assert not Path("run").exists()
