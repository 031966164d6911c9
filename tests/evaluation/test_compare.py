"""Paired comparisons: what the numbers say, what the sentence says, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distrlcc.cli.main import main
from distrlcc.errors import ConfigError
from distrlcc.evaluation.compare import KEYS, SURE, compare_links
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.report import ReportInfo, write_report
from distrlcc.evaluation.runner import evaluate
from distrlcc.evaluation.summary import MeanInterval
from distrlcc.sim.scenario import Link, Scenario
from distrlcc.sim.suites import digest
from tests.evaluation.made import failed_on, make_scores

INFO = ReportInfo("random", "distrlcc evaluate", {})
SCENARIO = Scenario("x", Link(12.0))


def _mean(value: float) -> MeanInterval:
    return MeanInterval(value, math.nan, math.nan)


def _links(power: np.ndarray) -> dict[str, dict[str, MeanInterval]]:
    rest = dict.fromkeys(KEYS[1:], _mean(0.5))
    return {f"link {k}": {"power": _mean(float(value)), **rest} for k, value in enumerate(power)}


def test_a_shift_is_found_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.4, 0.9, 40)
    ahead, alike = base + 0.05, base + rng.normal(0, 0.02, 40)
    found = compare_links({"a": _links(ahead), "b": _links(base), "c": _links(alike + 0.05)})
    power = {row.other: row for row in found.rows if row.key == "power"}
    assert power["b"].mean.mean == pytest.approx(0.05)
    assert (power["b"].ahead, power["b"].behind, power["b"].links) == (40, 0, 40)
    assert power["b"].p < SURE
    assert not power["c"].p < SURE
    said = found.sentence()
    assert "better than b in power (+0.050, ahead on 40 of 40 links, p < 0.001)" in said
    assert "not shown to differ from c in power" in said
    # Of what is better when it is lower, ahead is less.
    less = {name: {**row, "excess_loss": _mean(0.2)} for name, row in _links(base).items()}
    found = compare_links({"a": less, "b": _links(base)})
    loss = next(row for row in found.rows if row.key == "excess_loss")
    assert (loss.ahead, loss.behind) == (40, 0)


def test_links_in_common_alone_count_and_none_is_refused() -> None:
    one, other = _links(np.full(8, 0.9)), _links(np.full(8, 0.5))
    del other["link 3"]
    other["link 4"]["power"] = _mean(math.nan)
    found = compare_links({"a": one, "b": other})
    assert found.rows[0].links == 6
    with pytest.raises(ConfigError, match="no link in common"):
        compare_links({"a": one, "b": {"elsewhere": one["link 1"]}})


def test_what_cannot_be_tested_or_disagrees_is_not_told_as_better() -> None:
    base = np.linspace(0.4, 0.9, 20)
    few = compare_links({"a": _links(base[:3]), "b": _links(base[:3] - 0.1)})
    same = compare_links({"a": _links(base), "b": _links(base), "c": _links(base - 0.05)})
    for found in (few, same):
        assert np.isnan(found.rows[0].p)
        assert "is not shown to differ from b in power (" in found.sentence()
    assert "ahead on 3 of 3 links, too few for a test)" in few.sentence()
    assert "too few" not in same.sentence()
    assert "better than c in power" in same.sentence()
    # One link has the mean, and all others the test.
    skewed = base - 0.02
    skewed[0] += 2.0
    found = compare_links({"a": _links(skewed), "b": _links(base)})
    assert found.rows[0].p < SURE
    assert found.rows[0].mean.mean > 0
    assert "neither better nor worse than b in power: mean and links disagree" in found.sentence()


def test_who_delivers_nothing_has_no_delay_and_is_compared_in_power() -> None:
    one, other = _links(np.full(8, 0.9)), _links(np.zeros(8))
    for row in other.values():
        row["queueing_delay_rtt"] = _mean(math.nan)
    found = compare_links({"a": one, "b": other})
    assert found.sentence().startswith("a is better than b in power (+0.900, ahead on 8 of 8")
    assert [row.links for row in found.rows] == [8, 8, 0, 8]
    assert math.isnan(found.rows[2].mean.mean)
    for row in other.values():
        row["power"] = _mean(math.nan)
    with pytest.raises(ConfigError, match="no link in common on which runs of both count"):
        compare_links({"a": one, "b": other})


def test_the_command_compares_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("new", "old"):
        schemes = ["quickstart" if name == "new" else "vegas", "cubic"]
        write_report(tmp_path / name, [make_scores(s, 30, 1) for s in schemes], [], INFO)
    new, old = (str(tmp_path / name / "summary.json") for name in ("new", "old"))
    out = tmp_path / "c.json"
    vegas = f"{tmp_path / 'old'}:vegas"
    assert main(["compare", new, f"{old}:cubic", vegas, "--json", str(out)]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("quickstart is better than cubic in power (+")
    assert json.loads(out.read_text())["sentence"] == last
    for words, said in (
        ([new], "two or more"),
        ([new, f"{old}:bbr"], "unknown scheme of"),
        ([new, str(tmp_path / "old")], f"has no policy: say which of {tmp_path / 'old'}:vegas, "),
        ([new, "cubic"], "is a report, but cubic is not"),
        ([new, f"{old}:cubic", "--seeds", "2"], "--seeds: reports have been measured already"),
        ([new, str(tmp_path / "none.json")], "is no summary"),
    ):
        assert main(["compare", *words]) == 2
        assert said in capsys.readouterr().err, words


LINKS: dict[str, Any] = {
    "link.rate_mbps": 24.0,
    "link.delay_ms": 21.0,
    "link.loss": 0.01,
    "link.queue_packets": 41,
    "link.changes": [{"at_s": 1.0, "rate_mbps": 3.0}],
    "flows": [{"scheme": "agent"}, {"scheme": "cubic"}],
    "duration_s": 2.5,
    "seed": 3,
}
"""What differs between two links of one name."""


def _reported(folder: Path, link: Link, **more: Any) -> str:
    scenario = Scenario("x", link, **({"duration_s": 2.0} | more))
    scores, _ = evaluate(Contender("cubic"), [scenario])
    write_report(folder, [scores], [], INFO)
    return f"{folder}:cubic"


def test_links_of_one_name_that_differ_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual: Any = {"rate_mbps": 12.0, "queue_packets": 40}
    one = _reported(tmp_path / "one", Link(**usual))
    assert main(["compare", one, _reported(tmp_path / "same", Link(**usual))]) == 0
    for number, (place, value) in enumerate(LINKS.items()):
        link, key = ({}, {place: value}) if place[:5] != "link." else ({place[5:]: value}, {})
        other = _reported(tmp_path / str(number), Link(**usual | link), **key)
        capsys.readouterr()
        assert main(["compare", one, other]) == 2, place
        assert "x is not the same link, or world, in" in capsys.readouterr().err
    # A trace's file may be called, and lie, as it likes.
    for name, text in (("a", "1\n2\n"), ("b", "1\n2\n"), ("c", "1\n3\n")):
        (tmp_path / f"{name}.up").write_text(text)
    traces = [_reported(tmp_path / n, Link(trace=str(tmp_path / f"{n}.up"))) for n in "abc"]
    assert main(["compare", *traces[:2]]) == 0
    assert main(["compare", *traces[1:]]) == 2
    # Other packets, and a report of before.
    assert digest(SCENARIO) != digest(SCENARIO, "real packets None")
    summary = tmp_path / "same" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"digests": {}}))
    capsys.readouterr()
    assert main(["compare", one, f"{summary}:cubic"]) == 0
    assert "does not tell whether its links are the same" in capsys.readouterr().err


def test_what_is_left_out_of_a_comparison_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = make_scores("quickstart", 8, 1)
    write_report(tmp_path / "void", [failed_on(scores, 1, 2)], [], INFO)
    cubic = make_scores("cubic", 9, 2)
    cubic.figures["queueing_delay_rtt"][0] = np.nan
    write_report(tmp_path / "whole", [cubic], [], INFO)
    assert main(["compare", str(tmp_path / "void"), f"{tmp_path / 'whole'}:cubic"]) == 0
    said = capsys.readouterr()
    assert "quickstart: 2 of 8 runs do not count" in said.err
    assert "other numbers of runs for each link: " in said.err
    assert f"{tmp_path / 'whole'}:cubic has 2" in said.err
    assert "on 6 links of 9: the rest is not of both" in said.out
    assert "RTT), 5 links" in " ".join(said.out.split())
