"""The best member is copied whatever its pace, from a checkpoint that is there; deaths are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from distrlcc.tune.report import Copy, read_lines
from distrlcc.tune.tune_config import TimeAttr

pytest.importorskip("ray", reason="needs Ray (extra 'ray')")


def _run(tmp_path: Path, time_attr: str, keep: int, end: str) -> tuple[dict[str, Any], str]:
    words = [str(tmp_path), time_attr, str(keep), end]
    done = subprocess.run(
        [sys.executable, "-m", "tests.tune.members", *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = msgspec.json.decode((tmp_path / "out" / "summary.json").read_bytes())
    assert isinstance(summary, dict)
    return summary, done.stdout


def _but(quick: str) -> list[Any]:
    """Return all kinds of progress; tests with others than the quick one are long."""
    kinds = get_args(TimeAttr)
    return [kind if kind == quick else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


@pytest.mark.parametrize("time_attr", _but("time_total_s"))
@pytest.mark.parametrize("keep", [1])
def test_a_slower_best_member_is_copied(tmp_path: Path, time_attr: str, keep: int) -> None:
    summary, said = _run(tmp_path, time_attr, keep, "")
    copies = [*read_lines(tmp_path / "out" / "copies.jsonl", Copy)]
    assert (summary["copies_decided"], summary["failures"]) == (len(copies), {}), said
    # Before the best has saved anything there is nothing to copy; from then on all are made.
    early = sum(copy.donor is None for copy in copies)
    assert early <= 1
    assert all(copy.donor is None for copy in copies[:early]), copies
    made = copies[early:]
    assert summary["copies_made"] == len(made) >= 2
    assert all((copy.member, copy.donor) == (1, 0) for copy in made)
    assert any(copy.donor_time < copy.time for copy in made if copy.donor_time is not None)
    # Each was read by the copier, and what is left over of checkpoints is what was asked for.
    restored = [line.split() for line in (tmp_path / "restored").read_text().splitlines()]
    assert sum(line[:2] == ["1", "0"] for line in restored) == len(made)
    left = [*(tmp_path / "out" / "checkpoints" / "members").glob("member-*/checkpoint_*")]
    assert len(left) <= 2 * (keep + 1)
    text = (tmp_path / "out" / "table.txt").read_text()
    assert f"copies: {len(made)} made of {len(copies)} decided" in text


WHY = {"raise": "ValueError: no luck", "exit": "", "_exit": "", "kill": ""}


@pytest.mark.parametrize(
    "end", ["_exit", *(pytest.param(e, marks=pytest.mark.long) for e in WHY if e != "_exit")]
)
def test_a_member_that_dies_is_told_with_the_reason(tmp_path: Path, end: str) -> None:
    summary, said = _run(tmp_path, "update", 4, end)
    assert [*summary["failures"]] == ["1"]
    reason = summary["failures"]["1"]
    assert WHY[end] in reason
    assert f"member 1 failed: {reason}" in said
    text = (tmp_path / "out" / "table.txt").read_text()
    assert f"member 1 failed: {reason}\n1 of 2 members failed" in text
