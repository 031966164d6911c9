"""A machine's workers freeze, hang and die over torch RPC, and updates are broken off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.parallel.commands import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = """dagger.rollout_length=64 dagger.sequence_length=32 dagger.num_epochs=1
    dagger.capacity=4000 dagger.minibatch_size=500 network.hidden=[8] env.episode_s=2
    held_out.every=50 held_out.links=2 held_out.seconds=1 checkpoint_every=20
    total_steps=1000000000 actors.segments_per_update=2 actors.envs_per_worker=1
    dagger.lr_schedule=none"""
ENDLESS = """ppo.num_epochs=10000000 ppo.use_kl_loss=false ppo.rollout_length=64
    actors.segments_per_update=2 actors.envs_per_worker=1 held_out.links=2 held_out.seconds=1
    ppo.minibatch_size=64"""
NODE = "node --node-index 0 --node-num 1 --IP 127.0.0.1 --port 29533 --nodes nodes.toml"
HANGS = """
    import os
    import time
    from distrlcc.env.vector import LinkVectorEnv

    step = LinkVectorEnv.step

    def hangs(self, actions):
        while os.path.exists(f"hang{os.getpid()}"):
            time.sleep(0.05)
        return step(self, actions)

    LinkVectorEnv.step = hangs
"""
"""What the interpreter runs at its start: a step hangs while a file bears its process's number."""


STOP_SECONDS = 30.0
"""What a user's signal may take on a busy machine, s."""


class Node:
    """One machine's whole run, on loopback."""

    def __init__(self, folder: Path, *words: str, settings: str = SMALL) -> None:
        self.folder, self._log = folder, folder / f"log{len(list(folder.glob('log*')))}"
        hooks = folder / "hooks"
        hooks.mkdir(exist_ok=True)
        (hooks / "sitecustomize.py").write_text(textwrap.dedent(HANGS))
        (folder / "nodes.toml").write_text("nodes = [[0, 1, 'random']]")
        paths = [str(hooks), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        with self._log.open("wb") as log:
            line = (*NODE.split(), "--no-tensorboard", *words, "--set", *settings.split())
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distrlcc", *line],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                executable=sys.executable,  # starts cold, as a warm one has no sitecustomize
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def out(self) -> Path:
        (out,) = (self.folder / "runs").iterdir()
        return out

    def rows(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        folders = self.folder / "runs"
        return rows(self.out, name) if folders.is_dir() and any(folders.iterdir()) else []

    def act(self) -> bool:
        """Say whether all three workers act."""
        acting = {row["worker"] for row in self.rows("workers.jsonl") if row["steps"] > 0}
        return len(acting) == 3 and self.process.poll() is None

    def told(self, *words: str) -> bool:
        events = [event for row in self.rows() for event in row.get("events", [])]
        return any(all(word in event for word in words) for event in events)


@pytest.fixture
def start(tmp_path: Path, conftest: ModuleType) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def begin(*words: str, settings: str = SMALL) -> Node:
        nodes.append(Node(tmp_path, *words, settings=settings))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.process.kill()
        node.process.wait(20.0)


def test_workers_hang_freeze_and_die_and_load_finds_the_run(
    start: Callable[..., Node], conftest: ModuleType, tmp_path: Path
) -> None:
    node = start()
    conftest.wait_until(node.act, 90.0, "all workers act")
    _, *workers = conftest.rank_processes(node.process.pid)
    hang = tmp_path / f"hang{workers[0]}"
    hang.touch()
    conftest.wait_until(
        lambda: node.told("gone: worker 0", "environment hangs for"), 60.0, "the one that hangs"
    )
    before = len(node.rows())
    conftest.wait_until(lambda: len(node.rows()) > before + 5, 60.0, "training goes on")

    # Frozen, and nobody has noticed yet when the user stops the run.
    os.kill(workers[1], signal.SIGSTOP)
    node.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert node.process.wait(60.0) == 130, node.said
    assert time.monotonic() - began < STOP_SECONDS
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert f"--load {node.out.relative_to(tmp_path)}" in node.said
    done = node.rows()[-1]

    # Without a folder the newest run of the recipe goes on; all its workers die.
    node = start("--load", "--wait-workers", "2")
    conftest.wait_until(lambda: node.rows()[-1]["update"] > done["update"], 90.0, "going on")
    conftest.wait_until(lambda: node.rows()[-1]["workers"] == 3.0, 60.0, "all workers")
    for pid in conftest.rank_processes(node.process.pid)[1:]:
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    assert node.process.wait(60.0) == 3
    assert time.monotonic() - began < 30.0
    assert "no worker is left for 2 s; saved after update" in node.said
    updates = [row["update"] for row in node.rows()]
    assert updates == list(range(1, len(updates) + 1))


def test_an_update_without_end_is_broken_off(
    start: Callable[..., Node], conftest: ModuleType
) -> None:
    node = start("quickstart", settings=ENDLESS)
    conftest.wait_until(lambda: bool(node.rows("workers.jsonl")), 90.0, "workers come")
    time.sleep(3.0)
    assert "--load" not in node.said
    node.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert node.process.wait(60.0) == 130, node.said
    assert time.monotonic() - began < STOP_SECONDS
    assert not node.rows()  # no update was finished
    assert "--load" in node.said
