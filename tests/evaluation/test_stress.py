"""The search for links on which a policy fails: its space, its scores, shrinking, files, flags."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.evaluation import search, stress
from distrlcc.evaluation.contender import Contender, contender_named
from distrlcc.evaluation.report import stress_page
from distrlcc.evaluation.search import Findings, wilson
from distrlcc.evaluation.space import (
    DIMENSIONS,
    MOST_PACKETS,
    Point,
    distance,
    drawn,
    fits,
    scenario,
    simpler,
    uniforms,
    without_noise,
)
from distrlcc.evaluation.stress import PROPERTIES, Judge
from distrlcc.evaluation.stress_map import point_at
from distrlcc.net.emulator.link_config import load_scenario
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.suites import load_suite
from distrlcc.types import FloatArray

NUMBERS = [n for n, d in DIMENSIONS.items() if not d.choices and n != "seed"]
FEATURES = [n for n in NUMBERS if DIMENSIONS[n].is_feature]
SCHEME = """
from distrlcc.control.state import CWND, Scheme
def initialise(s, now, seed):
    s[CWND] = 100.0
def on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate, marked):
    s[CWND] = 100.0
def on_timeout(s, sent):
    s[CWND] = 100.0
hundred = Scheme(initialise, on_ack, on_timeout)
"""


@dataclass(frozen=True)
class Planted(Judge):
    """A judge of one property, which fails where a function says so."""

    fails: Callable[[Point], bool] = bool

    def of(self, keys: Sequence[str]) -> Planted:
        return self

    def __call__(self, points: Sequence[Point]) -> FloatArray:
        return np.array([[0.1 if self.fails(point) else 2.0] for point in points]).reshape(-1, 1)


def planted(fails: Callable[[Point], bool]) -> Planted:
    return Planted(Contender("cubic"), (PROPERTIES["use"],), fails=fails)


def shrunk(judge: Judge, point: Point) -> Point:
    found, score = search.shrunk(judge, judge.properties[0].key, point, 0.0, math.inf)
    assert score < 1
    assert judge([found])[0, 0] < 1
    return found


def full(seed: int = 0) -> Point:
    """Return a link that has every feature that another of its features does not exclude."""
    u = uniforms(seed, 0, 1)[0]
    names = list(DIMENSIONS)
    u = np.where([DIMENSIONS[n].share < 1 for n in names], 0.97 + 0.02 * u, 0.2 + 0.4 * u)
    return replace(drawn(u), trace="", delayed_acks="", rtt_ms=50.0, rate_mbps=10.0)


def test_plain_draws_are_of_the_whole_space_and_each_is_a_scenario() -> None:
    points = [drawn(u) for u in uniforms(0, 0, 3000)]
    inside = [point for point in points if fits(point)]
    assert len(inside) > 0.7 * len(points)
    for name, dimension in DIMENSIONS.items():
        values = {getattr(point, name) for point in inside}
        assert dimension.is_feature <= (0 in values or "" in values)
        if dimension.choices:
            assert values - {""} == set(dimension.choices), name
        elif name != "seed":
            found = [value for value in values if value]
            assert dimension.low <= min(found) < 3 * dimension.low, name
            assert dimension.high / 3 < max(found) <= dimension.high, name
    for point in inside[:500]:
        made = scenario(point)
        rate = made.link.rate_mbps or 0.0
        assert bdp_packets(rate, 1e3 * made.duration_s) <= 1.01 * MOST_PACKETS
        assert len(made.flows) == point.agents + bool(point.rival)


def test_draws_are_named_by_their_number() -> None:
    assert np.array_equal(uniforms(3, 0, 64)[32:], uniforms(3, 32, 32))
    assert not np.array_equal(uniforms(3, 0, 8), uniforms(4, 0, 8))


@pytest.mark.parametrize("name", FEATURES)
def test_a_link_shrinks_to_the_one_feature_that_fails_and_near_its_least(name: str) -> None:
    dimension = DIMENSIONS[name]
    least = math.sqrt(dimension.low * dimension.high)
    point = replace(full(), **dict[str, Any]({name: dimension.high}))
    judge = planted(lambda p: getattr(p, name) >= least)
    assert fits(point)
    found = shrunk(judge, point)
    assert found.features() == (name,)
    assert least <= getattr(found, name) <= 1.3 * least
    for other in ("rate_mbps", "rtt_ms", "queue_bdp"):
        assert getattr(found, other) == getattr(Point(), other)


@pytest.mark.parametrize("name", [n for n, d in DIMENSIONS.items() if d.choices and d.is_feature])
def test_a_link_shrinks_to_the_choice_that_fails(name: str) -> None:
    for choice in DIMENSIONS[name].choices:
        changed: Any = {name: choice}
        point = replace(full(), **changed, late_ms=0.0, silence_s=0.0, rate_factor=0.0)
        found = shrunk(planted(lambda p, c=choice: getattr(p, name) == c), point)  # type: ignore[misc]
        assert found == replace(Point(), **changed)


def test_two_features_that_fail_together_both_stay() -> None:
    judge = planted(lambda p: p.loss > 0.001 and p.jitter_ms > 1.0)
    found = shrunk(judge, replace(full(), loss=0.04, jitter_ms=20.0))
    assert found.features() == ("loss", "jitter_ms")
    assert found.loss < 0.0014
    assert found.jitter_ms < 1.4


def test_simpler_points_are_in_the_space_and_new() -> None:
    point = full()
    found = list(simpler(point))
    assert all(map(fits, found))
    assert point not in found
    assert len(set(found)) == len(found)


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "hundred.py"
    path.write_text(SCHEME)
    return f"{path}:hundred"


def test_a_scheme_with_a_window_of_100_shrinks_to_the_bdp_at_which_that_is_too_little(
    plugin: str,
) -> None:
    judge = Judge(contender_named(plugin), (PROPERTIES["use"],))
    point = Point(rate_mbps=150.0, rtt_ms=200.0, ack_jitter_ms=2.0, loss=0.001, delayed_acks="yes")
    found = shrunk(judge, point)
    # It has 100 / BDP of the link; 0.9 * 0.8 of the best, which has nearly all.
    assert found.features() == ()
    assert 0.9 * 139 < bdp_packets(found.rate_mbps, found.rtt_ms) < 1.4 * 139


def test_cubic_holds_what_is_judged_beside_cubic() -> None:
    keys = ("queue", "loss", "beside-cubic", "fair")
    judge = Judge(Contender("cubic")).of(keys)
    points = [p for p in (drawn(u) for u in uniforms(1, 0, 60)) if fits(p)]
    flows = [replace(Point(), flows=4, rival=rival) for rival in ("", "cubic", "reno")]
    scores = judge([*points, *flows])
    assert not (scores < 1).any()
    assert np.isfinite(scores).any(axis=0).all()


def test_noise_is_judged_where_there_is_noise_and_copa_where_it_sends_a_bounded_number() -> None:
    flood = Point(rate_mbps=1000.0, rtt_ms=0.1, queue_bdp=0.01)
    points = [Point(), Point(ack_jitter_ms=5.0), flood]
    for name in ("copa", "cubic"):
        scores = Judge(Contender(name)).of(("use", "noise"))(points)
        judged = [[True, False], [True, True], [name == "cubic", False]]
        assert np.isfinite(scores).tolist() == judged, name


def test_scores_are_what_is_counted() -> None:
    # A fixed window of a hundred on links whose BDP it fills by a known share.
    quarter = Point(rate_mbps=80.0, rtt_ms=60.0)
    own = stress.measure(contender_named("cubic"), [scenario(quarter)])
    assert own.used[0] > 0.95
    assert own.power[0] == pytest.approx(own.used[0] * 0.06 / (0.06 + own.queue_s[0]), rel=0.01)
    both = stress.measure(contender_named("cubic"), [scenario(replace(quarter, rival="cubic"))])
    assert 1 / 3 < both.ratio[0] < 3
    four = stress.measure(contender_named("cubic"), [scenario(replace(quarter, flows=4))])
    assert four.jain[0] > 0.8
    assert math.isnan(own.ratio[0])
    assert math.isnan(own.jain[0])


def test_one_holds_most_of_what_it_must_on_plain_draws() -> None:
    points = list(filter(fits, map(drawn, uniforms(0, 0, 64))))
    findings = Findings(tuple(PROPERTIES.values()), points, plain=len(points))
    findings.scores = list(Judge(contender_named("one"))(points))
    shares = findings.shares()
    least = {"use": 0.55, "queue": 0.85, "loss": 0.85, "noise": 0.75}
    assert {key: share for key, share in least.items() if shares[key]["share"] < share} == {}


@pytest.mark.long
def test_the_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CHUNK", 6)
    judge = Judge(Contender("vegas")).of(("queue", "loss"))
    found = [
        search.stress(judge, links=16, seed=5, processes=processes, most=2) for processes in (1, 2)
    ]
    assert found[0].points == found[1].points
    assert np.array_equal(found[0].scores, found[1].scores, equal_nan=True)
    assert found[0].failures == found[1].failures
    assert found[0].plain == 16


def test_an_interval_is_wilsons() -> None:
    low, high = wilson(18, 20)
    assert (round(low, 3), round(high, 3)) == (0.699, 0.972)
    assert wilson(10, 10)[1] == 1.0


@pytest.mark.long
def test_what_is_found_is_written_and_evaluated_again(plugin: str, tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again.json"
    words = ["--links", "24", "--processes", "1", "--properties", "use,fair", "--worst", "2"]
    assert main(["stress", plugin, *words, "--out", str(out), "--json", str(again)]) == 0
    assert "What holds, and where" in (out / "stress.html").read_text()
    figures = json.loads((out / "stress.json").read_text())
    assert figures == json.loads(again.read_text())
    assert figures["worst"]
    assert figures["plain"] == 24
    for name, one in figures["worst"].items():
        assert load_scenario(str(out / f"{name}.toml")) == scenario(Point(**one["link"]), name)
    alone = [name for name, w in figures["worst"].items() if w["link"].get("flows", 1) == 1]
    scenarios = load_suite(str(out / "worst.toml")).scenarios("test")
    assert [each.name for each in scenarios] == alone
    arguments = ["evaluate", plugin, "--suite", str(out / "worst.toml"), "--seeds", "1"]
    assert main([*arguments, "--against", "cubic", "--json", str(again)]) == 0
    for name, bad in json.loads(again.read_text())["schemes"]["hundred.py:hundred"][
        "scenarios"
    ].items():
        assert bad["utilisation"]["mean"] < 0.9, name


def test_files_of_an_earlier_search_go(tmp_path: Path) -> None:
    for name in ("use-1.toml", "worst-flows.toml", "mine.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / "stress.json").write_text('{"worst": {"use-1": {}, "../mine": {}}}')
    findings = Findings((PROPERTIES["use"],))
    search.write(tmp_path, findings, findings.to_json(), "a page")
    left = ["mine.toml", "stress.html", "stress.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == left
    # What that has not named is a user's.
    (tmp_path / "use-1.toml").write_text("mine")
    search.write(tmp_path, findings, findings.to_json(), "a page")
    assert (tmp_path / "use-1.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("held", "judged", "missed", "unjudged"),
    [(0, 4, True, False), (3, 4, True, False), (4, 4, False, False), (0, 0, False, True)],
)
def test_a_gate_is_missed_below_its_bar_and_where_nothing_was_judged(
    held: int, judged: int, missed: bool, unjudged: bool
) -> None:
    findings = Findings((PROPERTIES["use"],))
    scores = [[2.0]] * held + [[0.5]] * (judged - held) + [[np.nan]]
    findings.add(np.zeros((len(scores), 1)), [Point()] * len(scores), np.array(scores))
    findings.plain = len(scores)
    assert findings.missed() == ["use"] * missed
    assert findings.unjudged() == ["use"] * unjudged
    # The page's sentence names a property: what is judged of all never holds more often.
    figures = findings.to_json() | {"policy": "one"}
    page = stress_page(figures, search.tables(figures, {}), command="")
    said = f"one holds 'use' least often: on {held / max(judged, 1):.0%} of the links. All judged"
    assert (said in unescape(page)) == (judged > 0)


@pytest.mark.parametrize(
    ("at", "x", "y", "says"),
    [
        (["rate=100"], "rate_mbps", "rtt_ms", "an axis of the map"),
        ([], "late_share", "rtt_ms", "says nothing without late_ms"),
        (["start=0.1"], "loss", "rtt_ms", "says nothing without flows or rival"),
        (["trace=cellular"], "rate_mbps", "rtt_ms", "nothing of a cellular trace"),
    ],
)
def test_what_a_map_would_ignore_is_refused(at: list[str], x: str, y: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        point_at(at, x, y)


def test_the_link_without_noise_is_else_the_same() -> None:
    noisy = Point(
        rtt_ms=1.0, jitter_ms=50.0, late_ms=5.0, ack_tick_ms=9.0, rate_factor=0.1, silence_s=0.5
    )
    made = scenario(noisy)
    calm = without_noise(made)
    assert (calm.duration_s, calm.flows, calm.link.changes) == (
        made.duration_s,
        made.flows,
        made.link.changes,
    )
    assert (calm.link.jitter_ms, calm.link.ack_tick_ms, calm.link.reorder) == (0.0, 0.0, None)


def test_gates_are_an_exit_code(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--links", "12", "--processes", "1", "--worst", "0", "--gates"]
    assert main(["stress", plugin, *words, "--properties", "use"]) == 1
    assert "below its bar: use" in capsys.readouterr().out
    assert main(["stress", "cubic", *words, "--properties", "queue"]) == 0


def test_a_map_is_a_picture_and_its_figures(
    plugin: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("distrlcc.evaluation.stress_map.CELLS", 6)
    words = ["--x", "rate", "--y", "rtt", "--against", "cubic", "--processes", "1"]
    assert main(["map", plugin, *words, "--at", "queue=2", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "map.json").read_text())
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert '"kind":"map"' in (tmp_path / "map.html").read_text()
    assert (len(found["ys"]), len(found["xs"])) == (6, 6)
    assert found["at"]["queue_bdp"] == 2.0
    for row, rtt in zip(found["scores"], found["ys"], strict=True):
        for score, rate in zip(row, found["xs"], strict=True):
            bdp = bdp_packets(rate, rtt)
            if score is not None and bdp > 300:
                assert score < 0.7
            if score is not None and 3 < bdp < 60:
                assert score > 1
    words = ["--property", "fair", "--x", "rate", "--y", "rtt", "--out", str(tmp_path / "none")]
    assert main(["map", "cubic", *words, "--processes", "1"]) == 2
    assert "--at flows=8" in capsys.readouterr().err


def test_ctrl_c_writes_what_was_found(tmp_path: Path) -> None:
    words = ["stress", "cubic", "--budget", "100", "--processes", "2", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes: Any = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    command = [sys.executable, "-m", "distrlcc", *words]
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("drawn"))
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.stderr.read()
        assert process.wait(60) == 130
    figures = json.loads((tmp_path / "stress.json").read_text())
    assert figures["interrupted"]
    assert figures["plain"] > 0


def test_a_scheme_that_breaks_is_found(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        SCHEME.replace("on_ack(s", "on_ack(s", 1).replace("= 100.0\ndef on_t", "= -1.0\ndef on_t")
    )
    judge = Judge(contender_named(f"{path}:hundred"), (PROPERTIES["use"],))
    assert judge([Point()])[0, 0] == 0.0
    # Also where links of other lengths are judged with it.
    assert judge([Point(), Point(rtt_ms=400.0), Point(rtt_ms=30.0)])[:, 0].tolist() == [0.0] * 3


def test_unlike_links_are_far_apart() -> None:
    one, other = Point(), Point(jitter_ms=5.0, rival="cubic")
    assert distance(one, one) == 0.0
    assert distance(one, other) == distance(other, one) == 2.0
    assert distance(one, replace(one, rate_mbps=21.0)) < 0.05


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_on_one_it_finds_noise_lans_cubic_and_many_flows_by_itself(tmp_path: Path) -> None:
    begin = time.monotonic()
    words = ["stress", "one", "--always", "--budget", "540", "--processes", "2", "--worst", "32"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert time.monotonic() < begin + 900
    worst = json.loads((tmp_path / "stress.json").read_text())["worst"].values()
    noises = ("jitter_ms", "ack_jitter_ms")
    kinds = {
        "noise": any(w["property"] == "noise" and set(noises) & set(w["link"]) for w in worst),
        "lan": any(w["property"] in ("use", "noise") and w["link"]["rtt_ms"] < 2 for w in worst),
        "cubic": any(w["property"] == "beside-cubic" for w in worst),
        "flows": any(w["property"] == "fair" and w["link"]["flows"] > 4 for w in worst),
    }
    assert all(kinds.values()), kinds
    with (tmp_path / "worst.toml").open("rb") as file:
        assert tomllib.load(file)["scenarios"]
