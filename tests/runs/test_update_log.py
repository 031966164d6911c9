"""What is kept of a log that grows by a line per update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distrlcc.runs.metrics_log import cut_after


@pytest.mark.parametrize("count", [0, 1, 5, 4000])
@pytest.mark.parametrize("torn", ["", '{"upd', '{"update": 1}'])
def test_lines_up_to_an_update_are_kept(tmp_path: Path, count: int, torn: str) -> None:
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"update": k // 2, "text": "x" * (k % 90)}) + "\n" for k in range(count)]
    path.write_text("".join(lines) + torn)
    for update in sorted({10**9, count // 2, count // 4, 0, -1}, reverse=True):
        cut_after(path, update)
        assert path.read_text() == "".join(lines[: 2 * (update + 1)])


def test_a_line_that_is_longer_than_a_block_is_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first, second = (json.dumps({"update": k, "text": "x" * 200_000}) + "\n" for k in range(2))
    path.write_text(first + second)
    cut_after(path, 0)
    assert path.read_text() == first
