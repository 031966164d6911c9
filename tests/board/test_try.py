"""The playground's question in a terminal, and as the page asks it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.board.playground import AXES, CELLS, Question, map_of
from distrlcc.board.policies import gallery
from distrlcc.board.runs import Run, Runs
from distrlcc.board.server import Board
from distrlcc.cli.main import find, main
from distrlcc.cli.reproduce import _page
from distrlcc.cli.send import _drawn
from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import Contender
from distrlcc.net.flow_record import Sent, Step, StepLog
from distrlcc.recipes.result_row import shipped_rows
from distrlcc.runs.metrics_log import MetricsLog
from distrlcc.sim.suites import load_suite
from tests.board.made import Member

LOG = """# mahimahi mm-link (Uplink) [x] > x
# queue: droptail [packets=2]
# init timestamp: 0
# base timestamp: 0
""" + "".join(f"{t} + 1504\n{t} # 1504\n{t} - 1504 {t % 7}\n" for t in range(1, 500))


def test_its_flags_are_the_sliders() -> None:
    parser, _ = find("try")
    args = vars(parser.read([]))
    for each in fields(Question):
        default = args[each.name]
        assert (default if default != "" else "") == each.default, each.name


def test_it_answers_in_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    words = "try cubic bbr --rate 20 --rtt 40 --queue 30 --seconds 2 --beside reno --beside-at 1"
    assert main([*words.split(), "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"cubic +0\.\d+", said)
    assert "window, 0 to" in said
    assert " ".join(said.split()).startswith("rate 20.0 Mbit/s, rtt 40.0 ms, queue 30 packets, bes")
    found = json.loads(out.read_text())
    assert [one["name"] for one in found["senders"]] == ["cubic", "BBRv1"]
    # The command and the TOML that it gives ask the same.
    parser, _ = find("try")
    again = parser.read(shlex.split(found["command"])[2:])
    question = Question(**{each.name: getattr(again, each.name) for each in fields(Question)})
    assert question.toml() == found["toml"]
    (tmp_path / "mine.toml").write_text(found["toml"])
    assert load_suite(str(tmp_path / "mine.toml")).scenarios("test")[0] == question.scenario()


def test_a_link_in_words_has_units_and_what_counts_alone() -> None:
    for more, says in (
        ({"loss": 0.05}, "rate 20.0 Mbit/s, rtt 40.0 ms, queue 100 packets, loss 0.05 %, seconds"),
        ({"trace": "cellular:3"}, "rtt 40.0 ms, queue 100 packets, trace cellular:3, seconds 10"),
    ):
        assert Question(**more).words().startswith(says)
    assert "beside bbr, beside at 3.0 s, seconds 10.0 s" in Question(beside="bbr").words()


def test_what_a_policy_is_not_for_has_its_figures() -> None:
    (card,) = (card for card in gallery({}) if card["name"] == "one")
    assert re.search(r"\d%", card["not_for"])
    assert "{" not in card["not_for"]


@pytest.mark.parametrize(
    "words",
    ["--toml --json -", "--rate 0", "--queue 0", "--loss -1", "--aqm red", "--beside nobody",
     "--seconds 100",
     "--change-at 4", "--change-rate 4", "--trace nowhere", "--beside cubic --beside-at 20",
     "nobody", "--trace constant:5 --change-at 2 --change-rate 3",
     "--change-at 9 --change-rate 3 --seconds 5", "--beside cubic --seconds 3"],
)  # fmt: skip
def test_what_is_wrong_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", *words.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_map_compares_two_senders_and_refuses_what_says_nothing() -> None:
    own, other = Contender("cubic"), Contender("cubic")
    found = map_of(Question(rate=2.0), "loss", "queue", "use", own, other)
    assert (len(found["ratio"]), len(found["ratio"][0])) == (CELLS, CELLS)
    assert {x for row in found["ratio"] for x in row} == {1.0}
    assert "more share of the link used than cubic on 0% of these links" in found["says"]
    for x, y, key in (("rate", "rate", "use"), ("seconds", "rate", "use"), ("rate", "rtt", "all")):
        with pytest.raises(ConfigError):
            map_of(Question(), x, y, key, own, other)
    assert set(AXES) <= {each.name for each in fields(Question)}


def test_a_page_of_an_emulators_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "up.log").write_text(LOG)
    page = tmp_path / "up.html"
    assert main(["plot", str(tmp_path / "up.log"), "--out", str(page)]) == 0
    text = page.read_text()
    assert "12.03 Mbit/s crossed the link, 100% of what it could carry" in text
    assert "droptail 2 packets" in text
    (tmp_path / "bad.log").write_text("nothing")
    assert main(["plot", str(tmp_path / "bad.log"), "--out", str(page)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_pages_of_a_trace_a_flow_and_a_reproduction(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text("".join(f"{time}\n" for time in (*range(100), 1000)))
    page = tmp_path / "a.html"
    assert main(["plot", str(tmp_path / "a.trace"), "--out", str(page)]) == 0
    assert "for 90% of the time the link has less than a tenth" in page.read_text()
    assert "the longest pause is 901 ms" in page.read_text()
    steps = np.zeros((40, len(Step._fields)))
    steps[:, 0], steps[:, 1], steps[:, 2] = np.arange(1, 41) / 10, 0.1, 100
    sent = Sent(seconds=4.0, packets=4000, acked=4000, bytes=6_000_000)
    with StepLog(tmp_path) as log:
        for step in steps:
            log.add(Step(*step))
        text = _drawn(page, log, "cubic", 1500, sent).decode()
    assert "cubic: 4.0 s, 12.00 Mbit/s" in text
    assert '"label":"rate","values":[12.0,' in text
    row = shipped_rows()["gail"]
    worse = {"power": tuple(0.5 * x for x in row.scores["random"]["power"])}
    other = replace(row, scores=row.scores | {"random": row.scores["random"] | worse})
    text = _page(row, other, row.differences(other))
    count = len(row.measured())
    assert f"{count - 1} of {count} scores of gail came out as the results say" in text
    assert text.count('class="failed"') == 1


def test_files_of_strangers_do_not_end_the_board(tmp_path: Path) -> None:
    member = Member(tmp_path / "a")
    member.write(1.0, "x")
    run = tmp_path / "a"
    for name, data in (
        ("metrics.jsonl", b'{"update": 1, "steps": 5}\n[1]\n{"update": "x"}\nnot json\n{"upd'),
        ("versions.json", b"[1, 2]"),
        ("config.toml", b"\xff\xfe = broken ["),
    ):
        (run / name).write_bytes(data)
    runs = Runs([tmp_path])
    assert runs.refresh() == ["a"]
    found = runs["a"].detail()
    assert (found["updates"], found["steps"], found["recipe"]) == (1, 5.0, "")
    assert [one["name"] for one in found["timeline"]] == ["0 x (4000)"]
    assert runs.refresh() == []
    # A resume puts another file there, without the later rows; a copy may be made over the old.
    (run / "new").write_bytes(b'{"update": 7, "steps": 9, "seconds": 70}\n{"update": 8}\n')
    (run / "new").rename(run / "metrics.jsonl")
    assert runs.refresh() == ["a"]
    assert (list(runs["a"].rows), runs["a"].seconds) == ([7, 8], 70)
    (run / "metrics.jsonl").write_bytes(b'{"update": 7, "seconds": 3, "events": 5}\n')
    assert runs.refresh() == ["a"]
    assert (list(runs["a"].rows), runs["a"].seconds) == ([7], 3)
    assert [one["end"] for one in runs["a"].timeline()] == [1.0]
    # Whatever else these hold, all runs are told of.
    (run / "versions.json").write_text('{"date": 5}')
    (run / "workers.jsonl").write_text('{"worker": 0, "host": "x", "seconds": 2, "lag": NaN}\n')
    Member(tmp_path / "dated")
    board = Board(Runs([tmp_path]), tmp_path)
    assert {one["key"] for one in board.list_runs({})} == {"a", "dated"}
    json.dumps(board.run({"key": "a"}), allow_nan=False)
    shutil.rmtree(tmp_path / "dated")
    # Numbers and depths that Python refuses are nobody's rows; the others go on.
    (run / "new").write_bytes(
        b'{"update": Infinity}\n%b\n{"update": 8, "steps": 1%b}\n{"update": 9, "steps": 7}\n'
        % (b"[" * 200_000, b"0" * 400)
    )
    (run / "new").rename(run / "metrics.jsonl")
    assert runs.refresh() == ["a"]
    assert runs["a"].detail()["steps"] == 7.0
    # What cannot be read is told of, and keeps no other run from the page.
    other = Member(tmp_path / "b")
    other.write(1.0, "x")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    runs = Runs([tmp_path])
    assert runs.refresh() == ["a", "b"]
    assert [runs[key].state for key in "ab"] == ["unreadable", "running"]


def test_an_imitation_is_finished_after_its_epochs(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("epochs = 2")
    log, run = MetricsLog(tmp_path, tensorboard=False), Run("a", tmp_path)
    states = []
    for epoch in (1, 2):
        log.log(epoch, {"steps": 9.0 * epoch})
        run.refresh()
        states.append(run.state)
    log.close()
    assert states == ["running", "finished"]


def test_curves_and_events_follow_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrlcc.board.runs.MOST_ROWS", 100)
    run = Run("a", tmp_path)

    def write(*rows: dict[str, Any]) -> None:
        with (tmp_path / "metrics.jsonl").open("a") as lines:
            lines.writelines(f"{json.dumps(row)}\n" for row in rows)
        run.refresh()

    write({"update": 1, "steps": 10, "seconds": 1.0, "x": 0.5})
    assert run.curve("x") == {"update": (1,), "steps": (10,), "seconds": (1,), "value": (0.5,)}
    write({"update": 2, "x": 0.6}, {"update": 2, "steps": 20})  # a row in two lines
    write({"update": 3, "steps": 30, "events": ["joined: a"]}, {"update": 4, "x": 0.8})
    assert run.curve("x")["update"] == (1, 2, 4)
    assert run.curve("x")["steps"] == (10, 20, None)
    assert [event["update"] for event in run.events()] == [3]
    for key in "bcdefghij":  # more than are kept
        run.curve(key)
    # What is thinned out goes from curves, too; the newest and what happened stay.
    write(*({"update": n, "steps": 10 * n, "x": 1.0} for n in range(5, 300)))
    assert len(run.rows) < 200
    assert set(run.curve("x")["update"]) <= set(run.rows)
    assert (run.curve("x")["update"][-1], run.last["steps"]) == (299, 2990)
    assert [event["update"] for event in run.events()] == [3]


def test_folders_of_one_name_keep_their_runs_apart(tmp_path: Path) -> None:
    for place in ("x", "y"):
        Member(tmp_path / place / "runs" / "mine")
    folders = [tmp_path / place / "runs" for place in ("x", "y", "x")]
    runs = Runs(folders)
    runs.refresh()
    assert set(runs.runs) == {f"{folder}/mine" for folder in folders}
