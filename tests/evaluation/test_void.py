"""Runs that do not count: in no mean, no ranking and no figure, and said wherever there are any."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.evaluation import emulated, scorecard
from distrlcc.evaluation.contender import contender_from_scheme
from distrlcc.evaluation.emulated import busy
from distrlcc.evaluation.report import ReportInfo, render, write_report
from distrlcc.evaluation.scorecard import BESIDE, RECOVERY, TOGETHER, Benchmark, score
from distrlcc.evaluation.scores import (
    DISPLAY_NAMES,
    FAIRNESS_METRICS,
    SchemeScores,
    metric,
    shown,
)
from distrlcc.evaluation.summary import summarise
from distrlcc.library import evaluate, simulate
from distrlcc.policy.policy_file import save_policy
from distrlcc.recipes.result_row import ResultRow
from distrlcc.recipes.results_page import results_page
from distrlcc.sim.scenario import Link
from distrlcc.sim.simulator import BROKEN
from tests.evaluation.made import make_policy, make_scores, make_series, with_figures

INFO = ReportInfo("random", "distrlcc evaluate one", {})
LATE = "52.0% of a flow's steps were more than 1 ms late"


def _void(links: int, *places: int) -> SchemeScores:
    """Return the best scores of all, of which some links' runs were late."""
    best = make_scores("quickstart", links, 1)
    best = with_figures(best, power=np.full((links, 1), 0.999))
    return replace(best, reasons={(k, 0): LATE for k in places})


def test_a_void_run_is_not_ranked_and_everything_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    void, cubic = _void(1, 0), make_scores("cubic", 1, 1)
    page = write_report(tmp_path / "r", [void, cubic], [make_series("cubic")], INFO)
    html = page.read_text()
    # The first tile says it, and the page strikes it through, with what it measured.
    tile = html.partition('<div class="tiles">')[2].partition("</div>")[0]
    assert "1<small> of 2 runs does not count" in tile
    assert LATE in tile.replace("&#39;", "'")
    assert "ranks" not in html
    row = re.search(r'<tr class="learned void">.*?</tr>', html, re.DOTALL)
    assert row is not None
    assert re.search(r'class="void">\s*0\.999', row[0])
    assert '"0.999 (void)"' in html  # of its link
    for kind, name in (("csv", "quickstart,0.999"), ("tex", "quickstart (void) & 0.999")):
        assert name in (tmp_path / f"r/table.{kind}").read_text()
    assert [row[-1] for row in csv.reader((tmp_path / "r/table.csv").read_text().splitlines())] == [
        "void",
        "",
        "yes",
    ]
    # JSON says it; plots and their numbers leave it out, and say so.
    data = json.loads((tmp_path / "r/summary.json").read_text())
    assert data["ranking"] == ["cubic"]
    (run,) = data["void_runs"]
    assert (run["scheme"], run["run"], run["reason"]) == ("quickstart", 0, LATE)
    assert run["figures"]["power"] == 0.999
    assert data["schemes"]["quickstart"]["overall"]["power"]["mean"] is None
    for kind in ("scatter", "cdf", "box"):
        out = tmp_path / f"{kind}.svg"
        assert (
            main(["plot", str(tmp_path / "r/summary.json"), "--kind", kind, "--out", str(out)]) == 0
        )
        assert LATE in capsys.readouterr().err
        _, *rows = csv.reader((tmp_path / f"{kind}.svg.csv").read_text().splitlines())
        assert {row[0] for row in rows} == {"cubic"}


def test_links_with_a_void_run_are_in_nobodys_mean_or_distribution(tmp_path: Path) -> None:
    void, cubic = _void(4, 1), make_scores("cubic", 4, 1)
    summary = summarise([void, cubic])
    assert summary.common == 3
    others = {s.scheme: s.overall["power"].mean for s in summary.schemes}
    assert others["cubic"] == pytest.approx(np.delete(cubic.figures["power"], 1).mean())
    html = render(summary, [], INFO)
    assert "ranks 1 of 2 by power" in html
    assert "on 3 of 4 links" in html
    assert "1<small> of 8 runs does not count" in html
    write_report(tmp_path, [void, cubic], [], INFO)
    out = tmp_path / "f.svg"
    assert main(["plot", str(tmp_path / "summary.json"), "--kind", "cdf", "--out", str(out)]) == 0
    _, *rows = csv.reader((tmp_path / "f.svg.csv").read_text().splitlines())
    assert len(rows) == 2 * 3


@pytest.mark.parametrize("key", ["throughput_mbps", "utilisation", "power"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_does_not_count(key: str, value: float) -> None:
    good = make_scores("bbr", 2, 1)
    bad = make_scores("cubic", 2, 1)
    bad.figures[key][:] = value
    assert summarise([bad, good]).ranking() == ["bbr"]


def test_a_scheme_at_zero_counts_as_zero_and_is_said() -> None:
    """Left out, its mean would be of the links that it is good on."""
    idle, good = make_scores("vegas", 4, 1), make_scores("bbr", 4, 1)
    for key, values in idle.figures.items():
        values[:2] = 0.0 if key in ("power", "utilisation", "throughput_mbps") else np.nan
        values[2:] = {"power": 1.0, "queueing_delay_rtt": 0.0}.get(key, 0.0)
    idle.figures["throughput_mbps"][2:] = 1.0
    summary = summarise([idle, good])
    assert summary.ranking() == ["bbr", "vegas"]
    assert summary.schemes[1].overall["power"].mean == 0.5
    assert summary.notes()[0].startswith("vegas delivered nothing in 2 of 4 runs: power 0 there")
    assert summary.notes()[0].endswith("its delays are of the other runs.")
    silent = with_figures(idle, throughput_mbps=np.zeros((4, 1)))
    assert summarise([silent, good]).notes()[0].endswith("power 0 there, and no delay.")
    ranked = render(summary, [], INFO).partition('class="ranked"')[2].partition("</table>")[0]
    row = re.search(r"</i>vegas</th>(.*?)</tr>", ranked, re.DOTALL)
    assert row is not None
    best = re.findall(r"<td([^>]*)>", row[1])  # no delay of half of its runs is the best
    assert best
    assert not any("best" in each for each in best)


def test_a_guard_that_holds_the_window_is_said() -> None:
    held = with_figures(make_scores("quickstart", 2, 1), guarded=np.full((2, 1), 0.24))
    (said,) = summarise([held]).notes()
    assert "its guard held a lower window than it chose for 24% of the time" in said


CRASHES = {
    "raises": "raise ValueError('x')",
    "NaN": "s[CWND] = s[CWND] * math.nan",
    "no window": "s[CWND] = 0.0",
    "endless rate": "s[PACING] = math.inf",
}
SCHEME = """
import math

from distrlcc.control.state import CWND, PACING, Scheme

def initialise(s, now, seed):
    s[CWND] = 10.0

def on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior, rate, marked):
    if now > 1_000_000_000:
        {crash}

def on_timeout(s, sent):
    s[CWND] = 1.0

mine = Scheme(initialise, on_ack, on_timeout)
"""


BESIDE_IT = """
name = "beside"
duration_s = 5.0
[link]
rate_mbps = 12.0
delay_ms = 20.0
[[flows]]
[[flows]]
scheme = "{sender}"
"""


@pytest.mark.parametrize("crash", CRASHES)
def test_a_scheme_that_breaks_is_void_in_each_command(
    crash: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(SCHEME.format(crash=CRASHES[crash]))
    sender, links = "broken.py:mine", ["--links", "2", "--json", "out.json", "--against", "bbr"]
    # Each command goes on with the others, strikes it out, and ends with 1.
    assert main(["evaluate", sender, *links, "--seeds", "1", "--out", "r"]) == 1
    assert "(void)" in capsys.readouterr().out
    data = json.loads(Path("out.json").read_text())
    assert data["ranking"] == ["bbr"]
    assert [run["reason"] for run in data["void_runs"]] == [BROKEN] * 2
    assert json.loads(Path("r/summary.json").read_text())["void_runs"] == data["void_runs"]
    drawn = json.loads(Path("r/summary.json").read_text())["series"]
    assert {one["scheme"] for one in drawn} == {"bbr"}
    assert main(["fairness", sender, *links, "--suite", "shared-2"]) == 1
    capsys.readouterr()
    found = json.loads(Path("out.json").read_text())["suites"]["shared-2"]
    assert found["broken.py:mine"]["overall"]["jain"]["mean"] is None
    assert found["broken.py:mine"]["void_runs"][0]["reason"] == BROKEN
    assert found["bbr"]["overall"]["jain"]["mean"] > 0.5
    assert main(["recovery", sender, *links]) == 1
    assert "(void)" in capsys.readouterr().out
    assert json.loads(Path("out.json").read_text())["broken.py:mine"]["void"] == BROKEN
    suites = (
        Benchmark("random", (), 2, ("power", "utilisation")),
        Benchmark("shared-2", (), 2, TOGETHER),
        Benchmark("beside-cubic", (), 2, BESIDE),
        Benchmark("dynamic", (), 2, RECOVERY),
    )
    card = score([contender_from_scheme(sender), contender_from_scheme("reno")], suites)
    assert len(card.void) == len(suites)
    assert all(np.isnan(line.found[0].mean) for line in card.lines)
    # There are no figures of it in Python, and no data set.
    with pytest.raises(ConfigError, match=f"flow 0, {sender}: {BROKEN}"):
        simulate(Link(12.0), sender, seconds=2.0)
    assert main(["collect", sender, "--episodes", "1", "--out", "data"]) == 2
    assert f"scheme {sender}: {BROKEN}" in capsys.readouterr().err
    assert not Path("data").exists()
    # Nor is a rival of training's that sends no more.
    Path("beside.toml").write_text(BESIDE_IT.format(sender=sender))
    settings = [
        'env.suites=["beside.toml"]',
        "num_envs=8",
        "ppo.minibatch_size=64",
        "total_steps=20000",
    ]
    assert main(["train", "quickstart", "--out", "run", "--set", *settings]) == 2
    assert f"scheme {sender}: {BROKEN}" in capsys.readouterr().err
    monkeypatch.setattr(scorecard, "BENCHMARKS", suites[:1])
    assert main(["evaluate", sender, "--against", "reno", "--scorecard"]) == 1
    with pytest.warns(UserWarning, match="2 runs do not count"):
        scores = evaluate(sender, "reno", links=2)
    assert np.isnan(scores.mean()["broken.py:mine"])
    assert scores["counts"].tolist() == [False, False, True, True]
    assert "2 do not count" in repr(scores)


OBSERVATION = """
import numpy as np

from distrlcc.env.observations import Running

class Raises(Running):
    size = 2

    def __init__(self, n):
        super().__init__(n, seen=0.0)

    def observe(self, stats):
        self.values["seen"] += 1
        if self.values["seen"].max() > 50:
            raise RuntimeError("gone")
        return np.zeros((len(stats.acked), 2))
"""


def test_a_policys_code_that_raises_ends_its_own_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("seen.py").write_text(OBSERVATION)
    save_policy(tmp_path / "mine.safetensors", make_policy(observation="seen.py:Raises"))
    words = ["mine.safetensors", "--against", "reno", "--links", "2", "--json", "out.json"]
    assert main(["evaluate", *words, "--seeds", "1"]) == 1
    data = json.loads(Path("out.json").read_text())
    assert data["ranking"] == ["reno"]
    assert all("seen.py, line 15: RuntimeError: gone" in r["reason"] for r in data["void_runs"])
    assert len(data["void_runs"]) == 2
    for command in ("fairness", "recovery"):
        suite = {"fairness": "shared-2", "recovery": "dynamic"}[command]
        assert main([command, *words, "--suite", suite]) == 1
        assert "RuntimeError: gone" in Path("out.json").read_text()
        assert "(void)" in capsys.readouterr().out


def test_results_that_do_not_count_are_not_the_best_of_the_page() -> None:
    nan = float("nan")
    scores: dict[str, dict[str, tuple[float, ...]]] = {"random": {"power": (0.9, 0.9, 0.9)}}
    peers = {"random": {name: {"power": v} for name, v in (("a", nan), ("b", 0.2), ("c", 0.4))}}
    row = ResultRow("gail", "1", 1, (0, 1, 2), (1.0,) * 3, 0, scores, peers)
    worse = replace(row, recipe="other", scores={"random": {"power": (nan,) * 3}})
    lines = results_page({"other": worse, "gail": row}).splitlines()
    names = [line.split(" | ")[0].strip("| *") for line in lines if line.count("|") == 3][2:]
    assert names == ["gail", "other", "c", "b", "a"]


def test_a_busy_host_is_said_before_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    assert re.match(r"this machine is busy: load 99.0 on \d+ cores?, \d+% of timers late, ", busy())
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("distrlcc.net.flow_record.Ticker.late_share", lambda self: 0.0)
    monkeypatch.setattr(emulated, "_cpu_times", lambda: [0] * 10)
    assert busy() == ""
    times = iter([[0] * 10, [10, 0, 0, 80, 0, 0, 0, 10, 0, 0]])
    monkeypatch.setattr(emulated, "_cpu_times", lambda: next(times))
    assert "10% of CPU time taken by other guests" in busy()


def test_tails_are_the_worst_links_whichever_way_is_better() -> None:
    values = np.arange(20.0)
    assert metric("power").tails(values) == (2.0, 0.0)
    assert metric("loss").tails(values) == (17.0, 19.0)
    assert metric("power").tails(np.array([0.3, np.nan, 0.1])) == (0.1, 0.1)
    assert np.isnan(metric("mean_cwnd_packets").tails(values)).all()
    assert np.isnan(metric("power").tails(values[:1])).all()
    never = np.array([1.0, np.inf])
    assert metric("loss").tails(never) == (np.inf, np.inf)
    # Shares of a link are worst far from half.
    (share,) = (m for m in FAIRNESS_METRICS if m.key == "share")
    assert share.tails(np.array([0.5, 0.9, 0.05, 0.4])) == (0.05, 0.05)
    assert share.tails(np.linspace(0.5, 0.97, 20)) == pytest.approx((0.92, 0.97), abs=0.01)


@pytest.mark.parametrize("name", DISPLAY_NAMES)
def test_hints_know_the_names_that_are_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (shown(name), shown(name).lower(), shown(name).upper(), f"{name}1"):
        for words in ([given], ["--against", given]):
            assert main(["evaluate", *words]) == 2
            assert f"did you mean {name}" in capsys.readouterr().err
