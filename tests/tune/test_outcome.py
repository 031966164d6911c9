from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from distrlcc.learn.config import scheduled
from distrlcc.recipes.registry import recipe
from distrlcc.tune.outcome import Recorder, best_config, standings, write_outcome
from distrlcc.tune.plots import lineage
from distrlcc.tune.report import Report, Segment, extended, pieces, read_reports
from distrlcc.tune.space import Value
from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig

CONFIG = TuneConfig(
    run=replace(recipe("quickstart"), total_steps=60 * 256 * 64, max_seconds=0.0),
    space=("ppo.lr=loguniform:1e-5:1e-2", "ppo.clip_param=uniform:0.1:0.4"),
    pbt=PBTConfig(population=2),
)
FIRST: dict[str, Value] = {"ppo.lr": 1e-3, "ppo.clip_param": 0.2}
SECOND: dict[str, Value] = {"ppo.lr": 1.2e-3, "ppo.clip_param": 0.3}
OTHER = Segment(0, 1, {"ppo.lr": 1e-5, "ppo.clip_param": 0.1})


def _report(update: int, score: float, *schedule: Segment, attempt: int = 0) -> Report:
    member, steps, measured = schedule[-1].member, update * 256 * 64, (score, score, 0.9, 0.1, 0.0)
    return Report(member, update, steps, *measured, "argmax", 1.0, schedule, attempt)


PER_UPDATE = 1000  # fewer than there are slots: agents join and leave
START = Segment(0, 3, {"ppo.lr": 1e-3})
REPORTS = [
    _report(20, 0.3, Segment(0, 0, FIRST)),
    _report(20, -5.0, OTHER),
    _report(40, 0.4, Segment(0, 0, FIRST)),
    _report(40, 0.5, Segment(0, 0, FIRST), Segment(20, 1, SECOND, 20 * PER_UPDATE)),
    _report(60, 0.45, Segment(0, 0, FIRST)),
    _report(60, 0.4, Segment(0, 0, FIRST), Segment(20, 1, SECOND, 20 * PER_UPDATE)),
]
BEST = REPORTS[3]


def test_the_best_recipe_has_each_value_from_its_update_on() -> None:
    ppo = best_config(CONFIG.run, BEST).ppo
    assert ppo is not None
    assert ppo.clip_param == 0.3  # has no schedule: the last one
    for update in range(60):
        expected = 1e-3 if update < 20 else 1.2e-3
        assert scheduled(ppo.lr_schedule, update * PER_UPDATE, ppo.lr) == expected


def test_the_table_has_the_best_first() -> None:
    found = [(best.member, best.score, last.score) for best, last in standings(REPORTS, "max")]
    assert found == [(1, 0.5, 0.4), (0, 0.45, 0.45)]
    assert [best.member for best, _ in standings(REPORTS, "min")] == [1, 0]


def test_a_copy_begins_a_new_piece() -> None:
    assert [len(piece) for piece in pieces(REPORTS)] == [3, 1, 2]
    assert [(r.member, r.update) for r in lineage(REPORTS, BEST)] == [(0, 20), (1, 40)]


@pytest.mark.parametrize("searches", [False, True])
def test_everything_is_written(tmp_path: Path, searches: bool) -> None:
    config = replace(CONFIG, pbt=None, search=SearchConfig(trials=2)) if searches else CONFIG
    said = list[str]()
    recorder = Recorder(tmp_path, config, said.append)
    assert write_outcome(tmp_path, config, {}) is None
    # Another is as good, but later, so that it is not the one that is kept.
    for report in [*REPORTS, _report(60, BEST.score, Segment(0, 0, FIRST))]:
        recorder._shown = -math.inf
        recorder.record(report)
        recorder.keep(report, lambda: b"policy")
    assert "reward 0.5000  best 0.5000 (member 1 update 40)" in said[3]
    text = write_outcome(tmp_path, config, {0: "out of memory"})
    assert text is not None
    assert "member 0 failed: out of memory" in text
    assert ("from update 20 on (member 1): ppo.lr = 0.0012" in text) is not searches
    assert recipe(str(tmp_path / "best.toml")).ppo == best_config(config.run, BEST).ppo
    assert (tmp_path / "population.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "tune.html").read_text()
    assert "Member 1 is best, at update 40, with ppo.lr 0.0012" in page
    assert "Member 0 failed: out of memory" in page
    # A tuner that goes on keeps what was best.
    again = Recorder(tmp_path, config)
    assert again.best == BEST
    again.keep(_report(60, 0.49, OTHER), lambda: b"worse")
    assert (tmp_path / "policy.safetensors").read_bytes() == b"policy"


def test_a_schedule_grows_where_values_or_members_change() -> None:
    assert extended((), START) == (START,)
    assert extended((START,), Segment(20, 3, {"ppo.lr": 1e-3})) == (START,)
    copied, again = Segment(20, 5, {"ppo.lr": 1.2e-3}), Segment(20, 5, {"ppo.lr": 8e-4})
    assert extended((START,), copied) == (START, copied)
    assert extended((START, copied), again) == (START, again)  # never trained with the other


def test_reports_that_a_resume_made_anew_count_once(tmp_path: Path) -> None:
    def written(member: int, updates: Sequence[int], attempt: int) -> bytes:
        segment = Segment(0, member, FIRST)
        reports = [_report(update, 0.5, segment, attempt=attempt) for update in updates]
        return b"".join(msgspec.json.encode(report) + b"\n" for report in reports)

    first, second = [(0, (20, 40)), (1, (20, 40))], [(0, (40, 60)), (1, (60,))]
    lines = [written(m, u, 0) for m, u in first] + [written(m, u, 1) for m, u in second]
    (tmp_path / "r").write_bytes(b"".join(lines) + b'{"member": 1, "upd')
    found = [(r.member, r.update) for r in read_reports(tmp_path / "r")]
    assert sorted(found) == [(0, 20), (0, 40), (0, 60), (1, 20), (1, 40), (1, 60)]
    assert read_reports(tmp_path / "none") == []
    (tmp_path / "r").rename(tmp_path / "reports.jsonl")
    Recorder(tmp_path, CONFIG).record(_report(80, 0.5, Segment(0, 1, FIRST)))
    assert read_reports(tmp_path / "reports.jsonl")[-1].update == 80
