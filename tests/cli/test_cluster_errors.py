"""What the cluster's commands refuse: one line, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.cli.main import main

pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["start", "--port", "80"], "'80' is not a whole number from 1024"),
        (["start", "--ip", "203.0.113.9"], "expected an address of this machine"),
        (["start", "--interface", "nowhere0"], "expected one that is up"),
        (["start", "--ip", "127.0.0.1", "--resource", "CPU=3"], "have --cpus"),
        (["start", "--ip", "127.0.0.1", "--resource", "learner"], "expected NAME=AMOUNT"),
        (["start", "--ip", "127.0.0.1", "--resource", "learner=-1"], "expected NAME=AMOUNT"),
        (["start", "--autoscaling-config", "missing.yaml"], "there is no such file"),
        (["join", "127.0.0.1"], "is this machine itself"),
        (["join", "10.0.0.1:port"], "expected HOST:PORT"),
        (["join"], "required: HOST:PORT"),
        (["status"], "this machine is in no cluster"),
        (["stop"], "nothing to stop"),
    ],
)
def test_what_does_not_do(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DISTRLCC_TOKEN", raising=False)
    assert main(["cluster", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_token_that_guards_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DISTRLCC_TOKEN", "secret")
    assert main(["cluster", "start", "--ip", "127.0.0.1"]) == 2
    assert "DISTRLCC_TOKEN has 6 characters; expected 16 or more" in capsys.readouterr().err
