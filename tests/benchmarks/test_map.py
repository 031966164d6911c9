"""The map of where a policy is good: few cells of it, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from research import map as bench_map
from research.__main__ import COMMANDS


@pytest.mark.long
def test_a_map_has_a_score_in_each_cell_and_marks_where_a_scheme_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tuple(
        replace(m, x=(m.x[0], m.x[1][3:5]), y=(m.y[0], m.y[1][2:5])) for m in bench_map.MAPS
    )
    monkeypatch.setattr(bench_map, "MAPS", few)
    plot, figures = tmp_path / "map.svg", tmp_path / "map.json"
    words = ["map", "cubic-like", "--against", "bbr", "--out", str(plot), "--json", str(figures)]
    assert main(words, "bench", COMMANDS, "research.") == 2  # no such policy
    words[1] = "one"
    assert main(words, "bench", COMMANDS, "research.") == 0
    assert "<svg " in plot.read_text()
    maps = json.loads(figures.read_text())["maps"]
    assert [each["score"] for each in maps] == ["power", "power", "Jain index"]
    for each, shown in zip(maps, few, strict=True):
        for rows in each["values"].values():
            assert (len(rows), len(rows[0])) == (3, 2)
            assert all(0.0 < value <= 1.0 for row in rows for value in row)
        assert each["x"] == [shown.x[0], list(shown.x[1])]
    text = capsys.readouterr().out
    behind = [
        bbr > one + bench_map.MARGIN
        for each in maps
        for ours, theirs in zip(each["values"]["one"], each["values"]["bbr"], strict=True)
        for one, bbr in zip(ours, theirs, strict=True)
    ]
    assert text.count("+") == sum(behind) + len(few)  # and one in each title
