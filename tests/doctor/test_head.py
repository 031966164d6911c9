"""What a machine that could join hears from a real gate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrlcc.cluster.ray_gate import Gate
from distrlcc.cluster.ray_identity import node_identity
from distrlcc.doctor.head import head_rows
from distrlcc.doctor.row import Row, Verdict
from distrlcc.errors import ConfigError

TOKEN = "0123456789abcdef0123456789abcdef"
PORT = 24_100


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DISTRLCC_TOKEN", TOKEN)


@pytest.fixture
def identity() -> dict[str, str]:
    return node_identity()


@pytest.fixture
def _gate(identity: dict[str, str]) -> Iterator[None]:
    gate = Gate("127.0.0.1", PORT + 1, TOKEN, identity)
    yield
    gate.close()


def _rows() -> dict[str, Row]:
    return {row.check: row for row in head_rows(f"127.0.0.1:{PORT}")}


@pytest.mark.usefixtures("_gate")
def test_a_machine_that_fits() -> None:
    rows = _rows()
    assert list(rows) == ["interface", "head", "same versions"]
    assert {row.verdict for row in rows.values()} == {Verdict.OK}
    assert "reaches this machine" in rows["head"].found


@pytest.mark.usefixtures("_gate")
@pytest.mark.parametrize("identity", [{**node_identity(), "torch": "1.2.3"}])
def test_another_version_is_named(identity: dict[str, str]) -> None:
    row = _rows()["same versions"]
    assert row.verdict == Verdict.FAIL
    assert [line.split()[:2] for line in row.found.splitlines()[1:]] == [["torch", "1.2.3"]]


@pytest.mark.usefixtures("_gate")
def test_another_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_TOKEN", TOKEN[::-1])
    row = _rows()["head"]
    assert row.verdict == Verdict.FAIL
    assert "another token" in row.found
    monkeypatch.delenv("DISTRLCC_TOKEN")
    assert _rows()["head"].verdict == Verdict.WARN


def test_nobody_there() -> None:
    row = _rows()["head"]
    assert row.verdict == Verdict.FAIL
    assert "no cluster answers" in row.found
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        head_rows("127.0.0.1:x")
    (row,) = head_rows("no..host:6379")
    assert row.verdict == Verdict.FAIL
