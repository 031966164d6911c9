"""Runs whose disk is full, or whose folder is removed: one line says so, and all of them end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from distrlcc.runs.checkpoint import load_checkpoint
from tests.parallel.commands import Command

pytestmark = [pytest.mark.timeout(120)]

TINY = """num_envs=6 checkpoint_every=5 held_out.every=1000 held_out.links=2 held_out.seconds=0.3
    env.episode_s=0.5 network.hidden=[8] ppo.rollout_length=16 ppo.minibatch_size=64
    total_steps=1000000000"""
COUNTS = [1, pytest.param(3, marks=pytest.mark.long)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(place)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root: to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def _train(out: Path, processes: int) -> list[str]:
    words = ["-m", "distrlcc", "train", "quickstart", "--out", str(out)]
    return [*words, "--processes", str(processes), "--set", *TINY.split()]


def _error(run: Command) -> str:
    """Return the one line that a command ends with; those before it say how it went on."""
    assert run.process.wait(60) == 2, run.said
    run.nothing_is_left()
    *before, last = run.said
    assert last.startswith("distrlcc: error: ")
    news = ("compiling", "steps ", "gone: rank 0", "held-out links", "distrlcc: ")
    assert not [line for line in before if not line.startswith(news) or "error" in line], before
    return last


@pytest.mark.parametrize("processes", COUNTS)
def test_a_full_disk(tmp_path: Path, disk: Path, processes: int) -> None:
    out = disk / "run"
    with Command(tmp_path, *_train(out, processes)) as run:
        run.until_updates(out, 6)  # the first checkpoint is there
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        line = _error(run)
    assert f"cannot write {out}" in line
    assert "No space left on device" in line
    assert load_checkpoint(out / "checkpoints/latest.safetensors")["counters"]["update"] >= 5


@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_folder_that_is_removed(tmp_path: Path, processes: int) -> None:
    out = tmp_path / "run"
    with Command(tmp_path, *_train(out, processes)) as run:
        run.until_updates(out, 2)
        while out.exists():  # as rm -rf, which meets a file that is just being made
            shutil.rmtree(out, ignore_errors=True)
        assert str(out) in _error(run)
    assert not out.exists()  # no rank begins another one there
