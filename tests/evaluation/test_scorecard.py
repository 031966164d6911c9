"""The scorecard: gates, verdicts, the page, and the command's exit code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.cli.main import main
from distrlcc.evaluation import scorecard
from distrlcc.evaluation.contender import contender_from_scheme
from distrlcc.evaluation.scorecard import (
    BENCHMARKS,
    GATES,
    RIVALS,
    Benchmark,
    Gate,
    on_traces,
    score,
)
from distrlcc.evaluation.tables import printed
from distrlcc.policy.policy_file import save_policy
from distrlcc.sim.suites import load_suite
from tests.evaluation.made import make_policy, policy_contender

FEW = (
    Benchmark("random", (), 3, ("power", "excess_loss")),
    Benchmark("shared-2", (), 2, ("jain", "excess_loss")),
)


def test_every_gate_is_of_a_score_that_is_taken_on_links_that_exist() -> None:
    taken = {(one.label, key) for one in BENCHMARKS for key in one.metrics}
    assert set(GATES) <= taken
    for one in BENCHMARKS:
        load_suite(one.suite).scenario("test", 0)


def test_gates_are_passed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = {
        ("random", "power"): Gate(0.0),
        ("random", "excess_loss"): Gate(high=-1.0),
        ("shared-2", "excess_loss"): Gate(times=1.0),
    }
    monkeypatch.setattr(scorecard, "GATES", gates)
    contenders = [policy_contender(make_policy("argmax")), contender_from_scheme("cubic")]
    card = score(contenders, FEW)
    power, loss, jain, shared = card.lines
    assert power.passed == (True, True)
    assert loss.passed == (False, False)
    assert (jain.bound, jain.passed) == ("", (True, True))
    assert shared.passed[1]  # CUBIC is not worse than itself
    assert card.failed(contenders[0].name)[0] == "random: excess loss (%)"
    (verdict,) = card.verdicts
    assert "of 3 gates; it misses random: excess loss (%)" in verdict
    # Of links without a gate the first score is shown, of others the scores that have one.
    with_gates = [line for line in card.lines if line.bound]
    shown = [row.name for row in card.table(brief=True).rows]
    assert shown == [f"{line.label}: {line.metric.title}" for line in with_gates]
    monkeypatch.setattr(scorecard, "GATES", {})
    free = score(contenders, (replace(FEW[0], metrics=("power", "utilisation")), FEW[1]))
    shown = list(map(str, printed(free.table(brief=True)).columns[0].cells))
    # Utilisation stands beside power, and below each mean its tails; no gate makes no claim.
    beside = ["random: power", "  p10; worst", "random: utilisation (%)", "  p10; worst"]
    assert shown == [*beside, "shared-2: Jain", "  p10; worst"]
    assert free.verdicts == []


def test_on_a_trace_a_policy_must_be_level_with_every_scheme() -> None:
    policy, paths = policy_contender(make_policy("argmax")), ["cellular:7", "cellular:7"]
    contenders = [policy, *map(contender_from_scheme, ("reno", "oracle"))]
    card = score(contenders, on_traces(paths))
    assert {line.label for line in card.lines} == {"cellular:7", "cellular:7 (2)"}
    power, *others = [line for line in card.lines if line.label == "cellular:7"]
    rivals = [on_traces(paths[:1])[0].means(contender_from_scheme(name)) for name in RIVALS]
    bound = max(power.found[1].mean, *(scores["power"] for scores in rivals))
    assert power.bound == f"≥ {bound:.3f}"
    assert power.passed == tuple(each.mean >= bound for each in power.found) == (False, False, True)
    assert not any(line.bound for line in others)


def test_the_command_ends_with_1_where_a_gate_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scorecard, "BENCHMARKS", FEW)
    path, out = tmp_path / "mine.safetensors", tmp_path / "out"
    save_policy(path, make_policy())
    words = ["evaluate", str(path), "--against", "bbr", "--scorecard"]
    assert main([*words, "--out", str(out)]) == 0  # to look at; a line says what is missed
    assert "of 2 gates; it misses random: power" in capsys.readouterr().out
    assert main([*words, "--gates"]) == 1
    assert "it misses random: power" in capsys.readouterr().out
    page = (out / "scorecard.html").read_text()
    assert "≥ 0.980" in page
    assert "✗" in page
    figures = json.loads((out / "scorecard.json").read_text())
    assert figures["scores"][0]["values"].keys() == {"mine", "bbr"}
    assert "random: power" in figures["failed"]["mine"]
    assert figures["scores"][0]["worst"]["mine"] <= figures["scores"][0]["values"]["mine"]
    # Of schemes nothing is claimed; what has no meaning is refused.
    assert main(["evaluate", "--against", "bbr", "--scorecard"]) == 0
    assert "passes" not in capsys.readouterr().out
    for more in (["--against", "bbr", "--scorecard"], [str(path)]):
        assert main(["evaluate", *more, "--gates"]) == 2
        assert "--gates is for a policy's --scorecard" in capsys.readouterr().err
    assert main([*words, "--trace", "none"]) == 2  # before the first suite
    assert capsys.readouterr().err.startswith("distrlcc: error: none")
