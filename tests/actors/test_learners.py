"""Several learners, each with workers of its own: real processes, some of which die."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from distrlcc.actors.start import start_actors
from distrlcc.cli.main import main
from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from tests.actors.shared import DAGGER, ENGINES, SMALL, STOP_SECONDS, workers
from tests.hosts import rank_processes, wait_until
from tests.parallel.commands import Command, rows, saved, settings, updates

pytestmark = [pytest.mark.timeout(400)]

OUT = Path("run")
NODE = "node --node-index 0 --node-num 1 --ip 127.0.0.1 --nodes nodes.toml"
SETTINGS = f"""{SMALL} actors.segments_per_update=4 held_out.every=1000000
    distributed.sync_check_every=1 checkpoint_every=5"""
"""All weights are compared after each update; a difference ends the run with exit code 1."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes.toml").write_text("nodes = [[0, 1, 5, 'random']]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=6")


def _start(*words: str, keys: str = SETTINGS) -> Command:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = (
        *NODE.split(),
        f"--port={port}",
        "--no-tensorboard",
        *words,
        "--set",
        *settings(*keys.split()),
    )
    return Command(Path(), "-m", "distrlcc", *line)


def _until(run: Command, condition: Callable[[], bool], what: str) -> None:
    def met() -> bool:
        assert run.process.poll() is None, run.said
        return condition()

    wait_until(met, 200.0, what)


def _acts(run: Command) -> None:
    """Wait until workers of both learners act."""
    _until(run, lambda: len(workers(OUT)) == 4, "workers of both learners")


def _goes_on(run: Command, ranks: float, more: int = 5) -> None:
    """Wait for some more updates of so many learners."""
    done = len(rows(OUT))

    def enough() -> bool:
        newest = rows(OUT)
        return len(newest) > done + more and newest[-1]["ranks"] == ranks

    _until(run, enough, f"{more} updates more with {ranks:g} learners")


def _says(run: Command, *words: str) -> None:
    _until(run, lambda: any(all(w in line for w in words) for line in run.said), str(words))


@ENGINES
def test_a_worker_and_a_learner_die_and_the_run_is_stopped_and_goes_on(engine: str) -> None:
    with _start("--learners=2", "--out=run", keys=f"{SETTINGS} actors.engine={engine}") as run:
        _acts(run)
        _goes_on(run, 2.0)
        first, _, *acting = rank_processes(run.process.pid)
        assert rows(OUT)[-1]["workers"] == 4.0
        # A worker of the second learner dies, which goes on with its other one.
        os.kill(acting[1], signal.SIGKILL)
        _says(run, "gone: worker 1", "1 left")
        _until(run, lambda: rows(OUT)[-1]["workers"] == 3.0, "one worker less")
        _goes_on(run, 2.0)
        # The first learner dies; the second leads, in the same directory, and its worker acts on.
        os.kill(first, signal.SIGKILL)
        _says(run, "learner 0", "SIGKILL")
        _goes_on(run, 1.0)
        assert rows(OUT)[-1]["workers"] == 1.0
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(STOP_SECONDS) == 130, run.said
        assert "--load run" in run.said[-1]
        run.nothing_is_left()
    done = saved(OUT)["counters"]["update"]
    assert updates(OUT) == list(range(1, done + 1))
    # Both go on from what was saved, and end when all steps are done.
    steps = rows(OUT)[-1]["steps"] + 10 * 4 * 64
    with _start("--load=run", keys=f"total_steps={steps:.0f}") as run:
        assert run.process.wait(200.0) == 0, run.said
        assert sum("segments: " in line for line in run.said) == 3  # and that of the first life
    assert rows(OUT)[-1]["steps"] >= steps
    assert rows(OUT)[-1]["ranks"] == 2.0
    assert updates(OUT) == list(range(1, len(updates(OUT)) + 1))


def test_links_of_each_learners_workers_stay_as_they_were(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.toml", "b.toml")]
    for path in files:
        path.write_text('name = "x"\n[link]\nrate_mbps = 12.0\n')
    (tmp_path / "nodes.toml").write_text(f"nodes = [{[*map(str, files)]}]")
    keys = f"{SETTINGS} total_steps=8000 actors.segments_per_update=40 dagger.capacity=100"
    with _start("--learners=2", "--out=run", keys=keys) as run:
        assert run.process.wait(200.0) == 0, run.said
    # Rank 0 has waited for segments, and for the other learner.
    names = "share_wait", "share_update", "share_exchange"
    shares = [sum(row[name] for name in names) for row in rows(OUT)]
    assert 0.1 < min(shares) < max(shares) < 1.1, shares
    assert list(saved(OUT)["links"]) == [f"links of {path}" for path in files]
    files[1].write_text('name = "x"\n[link]\nrate_mbps = 3.0\n')
    with _start("--load=run", keys="total_steps=1_000_000") as run:
        assert run.process.wait(200.0) == 2, run.said
        assert f"the links of {files[1]} have changed since" in run.said[-1]


@pytest.mark.long
def test_a_learner_without_workers_adds_nothing_and_then_leaves() -> None:
    with _start("--learners=2", "--out=run", keys=f"{SETTINGS} actors.wait_workers=4") as run:
        _acts(run)
        _goes_on(run, 2.0)
        for pid in rank_processes(run.process.pid)[3::2]:
            os.kill(pid, signal.SIGKILL)
        # Before it is given up the other one does not wait for it.
        _until(run, lambda: rows(OUT)[-1]["workers"] == 2.0, "two workers less")
        _says(run, "learner 1 leaves: no worker is left for 4 s")
        _goes_on(run, 1.0)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(STOP_SECONDS) == 130, run.said
    left = [row for row in rows(OUT) if row["workers"] == 2.0 and row["ranks"] == 2.0]
    assert len(left) > 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--learners 5", "actors.learners is 5: expected at most one for each of 4 workers"),
        ("--learners 0", "not a whole number from 1 to 4096"),
        ("--learners 3 --set actors.segments_per_update=2", "at least one for each of 3 learners"),
    ],
)
def test_what_does_not_fit_is_one_line(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NODE.split(), *words.split()]) == 2
    assert told in capsys.readouterr().err
    assert not Path("runs").exists()


def test_several_learners_have_no_gpu() -> None:
    config = override(DAGGER, ["actors.learners=2", "actors.nodes=[['0', '5']]"])
    with pytest.raises(ConfigError, match="--gpu 0: 2 learners compute on the CPU"):
        start_actors(config, RunOptions(Path("run")), GroupOptions(gpu=0), Node())
