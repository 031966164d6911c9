from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from distrlcc.tune.report import (
    Report,
    Segment,
    encode,
    extended,
    read_reports,
)

SEGMENT = Segment(0, 3, {"ppo.lr": 1e-3})


def _report(member: int, update: int, attempt: int = 0) -> Report:
    return Report(
        member=member, update=update, steps=update * 100, score=0.5, reward=0.5, utilisation=0.9,
        queueing_delay=0.1, loss=0.0, acting="argmax", seconds=1.0, schedule=(SEGMENT,),
        attempt=attempt,
    )  # fmt: skip


def test_a_schedule_grows_where_values_or_members_change() -> None:
    assert extended((), SEGMENT) == (SEGMENT,)
    assert extended((SEGMENT,), Segment(20, 3, {"ppo.lr": 1e-3})) == (SEGMENT,)
    copied = Segment(20, 5, {"ppo.lr": 1.2e-3})
    assert extended((SEGMENT,), copied) == (SEGMENT, copied)


def test_values_that_never_trained_are_forgotten() -> None:
    copied = extended((SEGMENT,), Segment(20, 5, {"ppo.lr": 1.2e-3}))
    again = Segment(20, 5, {"ppo.lr": 8e-4})
    assert extended(copied, again) == (SEGMENT, again)


def test_reports_that_a_resume_made_anew_count_once(tmp_path: Path) -> None:
    first = [_report(0, 20), _report(1, 20), _report(0, 40), _report(1, 40)]
    second = [_report(0, 40, 1), _report(1, 60, 1), _report(0, 60, 1)]
    lines = b"\n".join(encode(r) for r in first + second)
    (tmp_path / "r").write_bytes(lines + b'\n{"member": 1, "upd')
    found = read_reports(tmp_path / "r")
    assert [(r.member, r.update) for r in found if r.member == 0] == [(0, 20), (0, 40), (0, 60)]
    assert [(r.member, r.update) for r in found if r.member == 1] == [(1, 20), (1, 40), (1, 60)]
    assert read_reports(tmp_path / "none") == []


def test_a_report_comes_back_as_it_was(tmp_path: Path) -> None:
    report = replace(_report(2, 20), schedule=(SEGMENT, Segment(10, 2, {"a": 1, "b": "x"})))
    (tmp_path / "r").write_bytes(encode(report) + b"\n")
    assert read_reports(tmp_path / "r") == [report]
