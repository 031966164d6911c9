"""An update costs the same time and memory however many came before it, in every way of training.

Bytes and lines of code are counted where the run is shown, which is after each update. Links are
alike, so that nothing else changes.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import distrlcc
from distrlcc.actors.start import actor_state, train_on_engine
from distrlcc.cli.main import main
from distrlcc.config import override
from distrlcc.data.reader import StoredData
from distrlcc.parallel.start import TrainJob
from distrlcc.recipes.registry import recipe
from distrlcc.runs.imitation import imitation_run
from distrlcc.runs.leadership import mark_run
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import RemoteProgress
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState, env_run
from distrlcc.runs.start import run_alone
from tests.hosts import wait_until
from tests.parallel.commands import Command, session
from tests.runs.test_recorder import Ranks
from tests.support.thread_engine import InProcessEngine

PACKAGE = f"{Path(distrlcc.__file__).parent}{os.sep}"
WARM, WINDOW, UPDATES = 61, 10, 262
MOST_BLOCKS = 10.0
"""Blocks of memory that an update may leave behind, in the mean; a row of metrics has 25."""
LINK = """name = "alike"
[[scenarios]]
name = "a"
duration_s = 5
link = { rate_mbps = 4, delay_ms = 10, queue_packets = 20 }
"""
SMALL = """num_envs=2 network.hidden=[8] env.episode_s=0.2 held_out.links=2 held_out.seconds=0.2
    held_out.every=60 checkpoint_every=30 max_seconds=0"""
PPO = f"{SMALL} ppo.rollout_length=8 ppo.minibatch_size=16 ppo.num_epochs=1"
DAGGER = f"""{SMALL} dagger.rollout_length=8 dagger.minibatch_size=64
    dagger.num_epochs=1 dagger.capacity=256"""
WAYS = {"quickstart": PPO, "gail": PPO, "imitation": DAGGER}


class Meter(RemoteProgress):
    """Shows nothing; it counts blocks of memory, and the lines that two windows of updates run."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.blocks = 0, list[int]()
        self.lines: tuple[Counter[str], Counter[str]] = Counter(), Counter()

    def update(self, metrics: Mapping[str, Any], alarm: str | None = None) -> None:
        self.count += 1
        self.news()
        for first, lines in zip((WARM, UPDATES - 1 - WINDOW), self.lines, strict=True):
            if self.count == first:
                gc.collect()
                self.blocks.append(sys.getallocatedblocks())
                sys.settrace(lambda *call, lines=lines: self._trace(lines, *call))
            if self.count == first + WINDOW:
                sys.settrace(None)

    def _trace(self, lines: Counter[str], frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return None
        lines[name.removeprefix(PACKAGE)] += 1
        return lambda *call: self._trace(lines, *call)

    def check(self) -> None:
        """Expect that an update leaves nothing behind, and runs what earlier ones ran."""
        assert self.count >= UPDATES - 1
        left = (self.blocks[1] - self.blocks[0]) / (UPDATES - 1 - WINDOW - WARM)
        assert left < MOST_BLOCKS, f"each update leaves {left:.1f} blocks of memory behind"
        early, late = self.lines
        assert early["runs/recorder.py"] > WINDOW
        more = {name: (early[name], n) for name, n in late.items() if n > 1.5 * early[name] + 300}
        assert not more, f"lines run by {WINDOW} updates, early and late: {more}"


@pytest.fixture
def meter() -> Iterator[Any]:
    yield Meter()
    sys.settrace(None)


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def _config(name: str, words: str, tmp_path: Path, *more: str) -> RunConfig:
    link = tmp_path / "alike.toml"
    link.write_text(LINK)
    suite = [f'env.suites=["{link}"]', "env.suite_weights=[]"]
    return override(recipe(name), [*words.split(), *suite, *more])


def _train(state: RunState, tmp_path: Path, meter: Any) -> None:
    assert run_alone(state, RunOptions(out=tmp_path / "run"), meter)[0] == 0


def _data(tmp_path: Path) -> Path:
    """Collect four episodes of an expert."""
    link, data = tmp_path / "alike.toml", tmp_path / "data"
    link.write_text(LINK)
    words = ["--disturb", "0", "--episodes", "4", "--num-envs", "2", "--set", "env.episode_s=0.2"]
    assert main(["collect", "oracle", "--suite", str(link), "--out", str(data), *words]) == 0
    return data


@pytest.mark.parametrize(
    "name", ["quickstart", "imitation", pytest.param("gail", marks=pytest.mark.long)]
)
def test_in_one_process(name: str, tmp_path: Path, meter: Meter) -> None:
    more = [f"gail.demonstrations={_data(tmp_path)}"] if name == "gail" else []
    config = _config(name, WAYS[name], tmp_path, *more)
    steps = UPDATES * config.num_envs * config.rollout_length
    _train(env_run(override(config, [f"total_steps={steps}"])), tmp_path, meter)
    meter.check()


@pytest.mark.long
def test_of_a_data_set(tmp_path: Path, meter: Meter) -> None:
    data = _data(tmp_path)
    words = f"""data={data} epochs={UPDATES} network.hidden=[8] held_out.every=60 held_out.links=2
        held_out.seconds=0.2 imitation.sequence_length=8 imitation.minibatch_size=64
        env.suites=["{tmp_path / "alike.toml"}"]""".split()
    config = override(ImitateConfig(), words)
    _train(imitation_run(config, StoredData(data)), tmp_path, meter)
    meter.check()


def test_with_actors(tmp_path: Path, meter: Meter) -> None:
    steps = f"total_steps={UPDATES * 2 * 8}"
    nodes = ('actors.nodes=[["0","5"]]', "actors.envs_per_worker=1")
    config = _config("quickstart", PPO, tmp_path, steps, *nodes)
    out = tmp_path / "run"
    RunDirectory.create(out, config, tensorboard=False).close()
    mark_run(out, "")
    job = TrainJob(config, out, tensorboard=False)
    state = actor_state(job)
    assert train_on_engine(job, state, lambda: InProcessEngine(2), feed=meter, patience=0.0) == 0
    meter.check()


def test_ranks_keep_the_rows_since_a_checkpoint_alone(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "run")
    ranks.agree(ranks.first, ranks.second)
    for _ in range(50):
        ranks.update(ranks.first, ranks.second)
        assert len(ranks.first.recorder.rows) <= 4  # every second update is saved
        assert len(ranks.second.recorder.rows) <= 4
    ranks.close()


LONG = {"one": "", "ranks": "--processes 2", "actors": ""}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", LONG)
def test_the_slope_of_a_long_run(way: str, tmp_path: Path) -> None:
    """Count the processor's seconds and resident memory over thousands of updates of a command."""
    parts, of_each, out = 6, 1000, tmp_path / "run"
    suites = _config("quickstart", PPO, tmp_path).env.suites
    words = [*PPO.split(), f'env.suites=["{suites[0]}"]', "env.suite_weights=[]"]
    words.append("total_steps=1000000000")
    if way == "actors":
        words += ['actors.nodes=[["0","5"]]', "actors.envs_per_worker=1"]
    command = ["train", "quickstart", "--out", str(out), *LONG[way].split(), "--set", *words]
    seen = []
    with Command(tmp_path, "-m", "distrlcc", *command) as run:
        for part in range(parts + 1):
            wanted = 300 + part * of_each
            wait_until(lambda: _lines(out) >= wanted, 1500.0, f"{wanted} updates")  # noqa: B023
            seen.append((_lines(out), *_cost(run.process.pid)))
    done, seconds, memory = np.array(seen, float).T
    paces = np.diff(seconds) / np.diff(done)
    assert paces[-1] < 1.3 * paces[:2].max(), f"s of an update: {paces}"
    # An update's row of metrics has some 2,000 bytes; allocators settle in the first updates.
    assert (memory[-1] - memory[2]) / (done[-1] - done[2]) < 1000, f"bytes: {memory}"


def _lines(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _cost(leader: int) -> tuple[float, float]:
    """Return the processor's seconds and the resident bytes of a session's processes."""
    seconds = memory = 0.0
    for pid in session(leader):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        memory += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return seconds, memory
