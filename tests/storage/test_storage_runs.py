"""Real runs that are stored: killed and gone on with on another host, from a folder and from S3."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distrlcc.cli.main import main
from distrlcc.storage import Storage
from tests.hosts import wait_until
from tests.parallel.commands import saved, updates
from tests.runs.test_train import ENDLESS, QUICK, UPDATE
from tests.trees import CLOCK, same

UPDATES = 50
WORDS = (*QUICK, f"total_steps={UPDATES * UPDATE}")


@pytest.fixture(scope="module")
def url(server: Any) -> str:
    """Return the URL of a bucket."""
    Storage(server.url, "").open(check=True)
    return str(server.url.partition("&")[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(words(out, *WORDS)) == 0
    return out


def words(out: Path, *more: str) -> list[str]:
    return ["train", "--no-tensorboard", "--out", str(out), *more]


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "distrlcc", *words(out, *more)]


def assert_like_whole(out: Path, whole: Path) -> None:
    assert updates(out) == list(range(1, UPDATES + 1))
    same(saved(whole), saved(out), CLOCK)


def test_a_killed_run_goes_on_from_s3(
    url: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "a" / "cut", tmp_path / "b" / "cut"
    process = subprocess.Popen(command(here, *WORDS, "--storage", url), stderr=subprocess.DEVNULL)
    wait_until(Storage(url, "cut").holds_run, 60, "something is stored")
    assert main(words(tmp_path / "c" / "cut", *WORDS, "--storage", url)) == 2
    assert "s3://runs/all/cut already holds a run: add --resume" in capsys.readouterr().err
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    shutil.rmtree(here)  # the machine is gone
    assert main(words(there, "--resume", "--storage", url)) == 0
    said = capsys.readouterr().err
    assert "fetched" in said
    assert "stored at s3://runs/all/cut" in said
    assert_like_whole(there, whole)
    Storage(url, "cut").pull(tmp_path / "copy")
    assert_like_whole(tmp_path / "copy", whole)


def test_a_server_that_is_away_for_a_while_stops_nothing(
    server: Any, url: str, tmp_path: Path
) -> None:
    out, log = tmp_path / "away", tmp_path / "log"

    def wait_for(word: str) -> None:
        wait_until(lambda: word in log.read_text(), 40, word)

    with log.open("wb") as file:
        process = subprocess.Popen(command(out, *QUICK, ENDLESS, "--storage", url), stderr=file)
    storage = Storage(url, "away")
    wait_until(storage.holds_run, 60, "something is stored")
    server.stop()
    wait_for("not stored: storage s3://runs/all")
    server.start()
    wait_for("stored again")
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert f"--storage '{url}'" in log.read_text().splitlines()[-1]
    assert not storage.push_if_new(out)
    assert log.read_text().count("not stored") == 1


@pytest.mark.long
def test_two_ranks_store_one_run(url: str, tmp_path: Path) -> None:
    out = tmp_path / "two"
    more = (*QUICK, f"total_steps={15 * UPDATE}", "--processes", "2", "--storage", url)
    process = subprocess.Popen(command(out, *more), stderr=subprocess.PIPE, text=True)
    storage = Storage(url, "two")
    wait_until(storage.holds_run, 60, "something is stored")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert not storage.push_if_new(out)
    shutil.rmtree(out)
    further = ("--resume", "--set", f"total_steps={20 * UPDATE}", "--processes", "2")
    assert main(words(out, *further, "--storage", url)) == 0
    found = updates(out)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 10
    assert not storage.push_if_new(out)


def test_what_is_wrong_with_the_storage_is_found_first(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, said in (
        ((*WORDS, "--storage", "s3://none/x?" + url.partition("?")[2]), "no bucket 'none'"),
        (("--resume", "--storage", url), "holds no run 'run' to resume"),
    ):
        assert main(words(tmp_path / "run", *more)) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len([x for x in error.splitlines() if not x.startswith("compiling")]) == 1
        assert list(tmp_path.iterdir()) == []
