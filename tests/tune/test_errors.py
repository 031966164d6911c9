"""Bad input to the commands: one line, exit code 2, nothing written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distrlcc.cli.main import main

LR = "ppo.lr=loguniform:1e-5:1e-2"
PBT = ("tune", "pbt", "quickstart", "--mutate", LR)


def _fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("distrlcc: error: ")
    assert captured.out == ""
    return lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tune",), "expected one of pbt, search"),
        (("tune", "pbt"), "no recipe"),
        (("tune", "pbt", "quickstart"), "expected --mutate"),
        (("tune", "search", "quickstart"), "expected --search"),
        ((*PBT, "--population", "1"), "population is 1: expected 2 or more"),
        ((*PBT, "--factors", "1.2"), "expected two numbers, as in 1.2,0.8"),
        ((*PBT, "--factors", "1.2,-1"), "expected two numbers above 0"),
        ((*PBT, "--interval", "0"), "interval is 0.0: expected more than 0"),
        ((*PBT, "--interval", "2.5"), "whole number of updates"),
        ((*PBT, "--updates", "10"), "raise --updates or lower --interval"),
        ((*PBT, "--resume"), "--resume needs --out"),
        ((*PBT, "--resume", "--out", "{}"), "give only --out"),
        (("tune", "pbt", "--resume", "--out", "{}/run"), "holds no tuner to resume"),
        ((*PBT, "--address", "head:1", "--cpus", "2"), "leave it out with --address"),
        (("tune", "search", "quickstart", "--search", "held_out.links=int:1:9"), "with --set"),
        (("train", "{}/none.toml"), "cannot be read"),
    ],
)
def test_one_line(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("recipe = 'quickstart'\n")
    assert says in _fails(capsys, *(word.replace("{}", str(tmp_path)) for word in words))
    assert list(tmp_path.iterdir()) == [run]


def test_storage_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    words = (*PBT, "--out", str(tmp_path / "out"), "--storage", str(tmp_path / "file" / "under"))
    assert "file/under" in _fails(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_ray_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    says = _fails(capsys, *PBT, "--out", str(tmp_path / "out"))
    assert "pip install 'distrlcc[ray]'" in says
    assert not (tmp_path / "out").exists()
