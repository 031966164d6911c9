"""What a machine that could join is told; a real head answers in tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.doctor.head import head_rows
from distrlcc.doctor.row import Row, Verdict
from distrlcc.errors import ConfigError

TOKEN = "0123456789abcdef0123456789abcdef"
PORT = 24_100


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DISTRLCC_TOKEN", TOKEN)


def _rows() -> dict[str, Row]:
    return {row.check: row for row in head_rows(f"127.0.0.1:{PORT}")}


def test_nobody_there() -> None:
    row = _rows()["head"]
    assert row.verdict == Verdict.FAIL
    assert "no Ray cluster answers" in row.found
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        head_rows("127.0.0.1:x")
    (row,) = head_rows("no..host:6379")
    assert row.verdict == Verdict.FAIL
