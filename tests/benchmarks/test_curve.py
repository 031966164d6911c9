"""Quality against steps: policies of runs that were copied at nearly the same steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.runner import evaluate
from distrlcc.policy.policy_file import find_policy
from distrlcc.sim.suites import load_suite
from research.__main__ import COMMANDS
from research.curve import together


def _curve(*words: str) -> int:
    return main(["curve", *words], "bench", COMMANDS, "research.")


def test_runs_are_scored_where_all_have_a_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, copies in (("a", {100: "indigo", 200: "one"}), ("b", {101: "one", 300: "one"})):
        (tmp_path / run).mkdir()
        for steps, name in copies.items():
            (tmp_path / run / f"{steps}.safetensors").write_bytes(find_policy(name).read_bytes())
    plot, figures = tmp_path / "curve.svg", tmp_path / "curve.json"
    runs = [str(tmp_path / name) for name in "ab"]
    words = ["--suites", "random", "--links", "2", "--out", str(plot), "--json", str(figures)]
    assert _curve(*runs, *words) == 0
    links = load_suite("random").scenarios("validation", 2)
    power = [
        evaluate(contender_from_file(name), links)[0].figures["power"].mean()
        for name in ("indigo", "one")
    ]
    assert json.loads(figures.read_text()) == {
        "format": "distrlcc-curve",
        "steps": [100.5],
        "power": {"random": [power]},
    }
    assert f"{sum(power) / 2:11.3f}\n" in capsys.readouterr().out
    assert "power: random" in plot.read_text()
    assert _curve(runs[0], str(tmp_path)) == 2
    assert "expected policies there, such as 25000000" in capsys.readouterr().err


def test_places_are_those_of_nearly_the_same_steps() -> None:
    first, second = ([Path(f"{k}.x") for k in run] for run in ((100, 200, 400), (96, 211, 385)))
    assert together([first, second]) == [[first[0], second[0]], [first[2], second[2]]]
