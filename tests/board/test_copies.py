"""Runs at a storage's URL are shown like a folder's, and nothing of a board stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from distrlcc.board import copies
from distrlcc.board.copies import Copies, own_folder
from distrlcc.board.runs import Runs
from distrlcc.storage import LATEST, Storage
from tests.board.made import finished_run


def _stored(run: Path, url: str, name: str) -> None:
    (run / LATEST).parent.mkdir(exist_ok=True)
    (run / LATEST).write_bytes(b"weights")
    storage = Storage(url, name, "id")
    with storage.claim():
        storage.push(run)


@pytest.mark.parametrize("single", [False, True])
def test_what_is_stored_is_shown_and_followed(
    single: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_BYTES", 50_000)
    url, run = f"file://{tmp_path}/storage", tmp_path / "alpha"
    finished_run(run, lr=1e-3)
    (run / "policy.safetensors").write_bytes(bytes(60_000))
    _stored(run, url, "alpha")
    stored = sorted(path for path in (tmp_path / "storage").rglob("*"))
    place, asked = tmp_path / "own", f"{url}/alpha" if single else url
    found = Copies(asked, place)
    runs = Runs([], {place: asked})
    runs.refresh()
    assert [*runs.runs] == ["alpha"]
    assert runs["alpha"].summary()["best"] == pytest.approx(0.9)
    assert not [path for path in place.rglob("*.safetensors")]  # too large, or not asked for
    assert sorted(path for path in (tmp_path / "storage").rglob("*")) == stored
    # What is stored later comes, too.
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"update": 21, "steps": 2100, "held_out_reward_argmax": 2.5}\n')
    _stored(run, url, "alpha")
    found._fetch()
    assert runs.refresh() == ["alpha"]
    assert runs["alpha"].summary()["best"] == 2.5


def test_a_killed_boards_folder_goes_and_a_living_ones_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import sys, tempfile, time; from distrlcc.board.copies import own_folder\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "with own_folder() as made: print(made, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout is not None
        theirs = Path(board.stdout.readline().strip())
        os.utime(theirs, (1, 1))
        with own_folder() as mine:
            assert (theirs.is_dir(), mine.is_dir()) == (True, True)
        assert not mine.exists()
        board.send_signal(signal.SIGKILL)
        board.wait()
    assert theirs.is_dir()
    (tmp_path / f"{copies.PREFIX}link").symlink_to(tmp_path)
    with own_folder():
        assert not theirs.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"{copies.PREFIX}link"]
