"""What is found becomes a verdict and a remedy."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distrlcc.cli.main import main
from distrlcc.doctor import machine
from distrlcc.doctor.findings import Verdict, finding, worst
from distrlcc.errors import ConfigError
from distrlcc.extras import install_command
from distrlcc.runs.identity import NOT_INSTALLED
from distrlcc.storage import Storage


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let this machine have enough of everything."""
    monkeypatch.setattr(machine, "MEMORY_GB", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9e9))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(machine, "node_identity", lambda: {"ray": "2.60.0"})
    return monkeypatch


def _verdicts(*, cluster: bool) -> dict[str, Verdict]:
    return {row.check: row.verdict for row in machine.check_machine(cluster=cluster)}


def test_the_worst_counts() -> None:
    ok, warn = finding("a", "x"), finding("b", "y", warn="do")
    fail = finding("c", "z", fail="do", warn="or")
    assert (fail.verdict, fail.remedy) == (Verdict.FAIL, "do")
    assert worst([]) == worst([ok]) == Verdict.OK
    assert worst([ok, warn]) == Verdict.WARN
    assert worst([warn, fail, ok]) == Verdict.FAIL


def test_a_machine_without_ray_can_train_but_not_join(fit: pytest.MonkeyPatch) -> None:
    assert set(_verdicts(cluster=True).values()) == {Verdict.OK}
    fit.setattr(machine, "node_identity", lambda: {"ray": NOT_INSTALLED})
    assert _verdicts(cluster=False)["versions"] == Verdict.WARN
    assert _verdicts(cluster=True)["versions"] == Verdict.FAIL
    assert install_command("ray") in machine.check_machine(cluster=True)[0].remedy


@pytest.mark.parametrize(
    ("room", "name", "value", "check", "verdict"),
    [
        (os, "getloadavg", lambda: (1e4, 0.0, 0.0), "cores", Verdict.WARN),
        (machine, "MEMORY_GB", 1e9, "memory", Verdict.WARN),
        (machine, "DISK_GB", 10.0, "disk", Verdict.WARN),
        (machine, "SHARED_GB", 10.0, "disk", Verdict.WARN),
        (shutil, "disk_usage", lambda _: SimpleNamespace(free=0), "disk", Verdict.FAIL),
    ],
)
def test_too_little_is_said(
    fit: pytest.MonkeyPatch, room: Any, name: str, value: Any, check: str, verdict: Verdict
) -> None:
    fit.setattr(room, name, value)
    found = _verdicts(cluster=True)
    assert found.pop(check) == verdict
    assert set(found.values()) == {Verdict.OK}


def test_other_versions_fail() -> None:
    common = {"ray": "2.60", "code": "cde"}
    same, other = (
        machine.compare_versions("a", common, own) for own in (common, common | {"ray": "2.1"})
    )
    assert (same.verdict, same.found) == (Verdict.OK, "as on a")
    assert (other.verdict, other.found.split()[2:]) == (Verdict.FAIL, ["ray", "2.60", "2.1"])


def test_emulation_never_fails() -> None:
    rows = machine.check_emulation()
    assert {row.check for row in rows} == {
        "namespaces",
        "TUN",
        "mahimahi",
        "kernel's TCP",
        "kernel load",
    }
    assert all(row.verdict != Verdict.FAIL for row in rows)
    assert all(row.remedy for row in rows if row.verdict == Verdict.WARN)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_storage_that_is_shared_and_one_that_is_not(tmp_path: Path, scheme: str) -> None:
    mine, yours = tmp_path / "mine", tmp_path / "yours"
    for folder in (mine, yours):
        folder.mkdir()
    marks = machine.new_marks(f"{scheme}{mine}")
    elsewhere = Storage(f"{scheme}{yours}", marks.name)
    assert [machine.leave_mark(marks, name) for name in ("a", "b")] == ["", ""]
    assert machine.leave_mark(elsewhere, "b") == ""
    assert machine.missing_marks(marks, ["a", "b"]) == []
    assert machine.missing_marks(marks, ["a", "c"]) == ["c"]
    one = machine.judge_storage("/mnt", "", machine.missing_marks(elsewhere, ["a", "b"]))
    assert one.verdict == Verdict.FAIL
    assert "what a wrote is not there" in one.found
    machine.sweep_marks(marks)
    assert list(mine.iterdir()) == []


def test_a_storage_must_be_a_folder_or_a_known_url(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place, found in ((str(file), "no such folder"), ("nonsense://x", "unknown scheme")):
        one = machine.check_here(place=place)[-1]
        assert (one.check, one.verdict) == ("storage", Verdict.FAIL)
        assert found in one.found


def test_a_head_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DISTRLCC_TOKEN", "0123456789abcdef0123456789abcdef")
    head = machine.check_head("127.0.0.1:24100")[-1]
    assert (head.check, head.verdict) == ("head", Verdict.FAIL)
    assert "no Ray cluster answers" in head.found
    monkeypatch.delenv("DISTRLCC_TOKEN")
    assert machine.check_head("127.0.0.1:24100")[-1].verdict == Verdict.WARN
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        machine.check_head("127.0.0.1:x")
    (way,) = machine.check_head("no..host:6379")
    assert way.verdict == Verdict.FAIL


def test_the_command_prints_writes_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json", "-", "--storage", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] in ("ok", "warn")
    assert {"check", "machine", "verdict", "found", "remedy"} == set(told["rows"][0])
    assert "torch" in told["rows"][0]["found"]

    assert main(["doctor", "--storage", str(tmp_path / "gone")]) == 1
    assert "1 failures" in capsys.readouterr().out
