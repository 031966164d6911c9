"""What commands print, write and take from files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.cli.main import find, main
from distrlcc.cli.node import actors_config, newest_run
from distrlcc.cli.output import Countdown
from distrlcc.errors import ConfigError
from distrlcc.policy.policy_file import shipped_policies
from distrlcc.recipes.registry import recipe
from distrlcc.recipes.result_row import shipped_rows
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--help",), ("train", "--help"), ("check", "--help"), ("check", "sim", "-h")):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        assert "usage: distrlcc" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(("--version",))
    assert capsys.readouterr().out.startswith("distrlcc 0.")


def test_one_is_the_policy_where_none_is_named() -> None:
    assert find("send")[0].parse_args(["host:4000"]).sender == "one"
    assert find("kernel_load")[0].parse_args([]).policy == "one"
    assert main(["evaluate", "--links", "1", "--seeds", "1", "--json", "one.json"]) == 0
    assert "one" in json.loads(Path("one.json").read_text())["schemes"]
    words = ["evaluate", "--against", "cubic", "--links", "1", "--seeds", "1", "--json", "c.json"]
    assert main(words) == 0
    assert json.loads(Path("c.json").read_text())["schemes"].keys() == {"cubic"}


def test_recovery_writes_its_figures() -> None:
    words = ["--links", "2", "--json", "r.json", "--out", "report"]
    assert main(["recovery", "--against", "oracle,cubic", *words]) == 0
    assert ">oracle</th>" in Path("report/recovery.html").read_text()
    assert "is first" not in Path("report/recovery.html").read_text()  # cubic never recovers
    found = json.loads(Path("r.json").read_text())
    assert found["oracle"]["recovered"] == 1.0
    assert found["cubic"]["recovered"] < 0.5


@pytest.mark.parametrize(
    "words",
    ["evaluate --against cubic", "compare cubic reno", "fairness", "recovery --against cubic"],
)
def test_a_suite_with_fewer_links_than_asked_for_says_so(words: str) -> None:
    with pytest.warns(UserWarning, match=r"^dynamic/test/0 has 1 link, fewer than the 3 asked for"):
        assert main([*words.split(), "--suite", "dynamic/test/0", "--links", "3"]) == 0


def test_what_takes_long_says_how_long_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 0.0, 1.0, 2.0, 7.0, 8.0, 20.0])
    monkeypatch.setattr("distrlcc.cli.output.monotonic", lambda: next(now))
    countdown = Countdown("ab", "scoring {}".format)
    for _ in countdown:
        countdown(0.05)  # too little to tell, then too soon to tell again
        countdown(0.5)
    assert capsys.readouterr().err.splitlines() == [
        "scoring a ...",
        "scoring b, about 7 s left ...",
        "scoring b, about 7 s left ...",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("evaluate --against cubic --links 2 --seeds 1", r"evaluating cubic on 2 links"),
        ("check sim --scenarios 2", r"comparing 2 scenarios"),
    ],
)
def test_a_command_shows_the_time_left_of_what_it_does(
    words: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distrlcc.cli.output._QUIET_S", 0.0)
    assert main(words.split()) == 0
    assert re.search(rf"^{says}, about \d+ s left \.\.\.$", capsys.readouterr().err, re.M)


def _run(out: Path, config: RunConfig) -> Path:
    """Make a run with a checkpoint."""
    with RunDirectory.create(out, config, tensorboard=False) as run:
        run.save({"nothing": 0})
    return out


def test_the_newest_run_of_the_recipe_is_loaded() -> None:
    indigo, other = recipe("indigo"), recipe("imitation")
    for age, (name, config) in enumerate(
        [("newer", other), ("new", indigo), ("middle", indigo), ("old", other)]
    ):
        path = _run(Path("runs") / name, config) / "checkpoints" / "latest.safetensors"
        os.utime(path, (1e9 - age, 1e9 - age))
    RunDirectory.create(  # has no checkpoint yet
        Path("runs/begun"), indigo, tensorboard=False
    ).close()
    damaged = _run(Path("runs/damaged"), indigo)
    (damaged / "config.toml").write_text("nothing = 1")
    assert newest_run("indigo") == Path("runs/new")
    assert newest_run("imitation") == Path("runs/newer")
    with pytest.raises(ConfigError, match="no run of quickstart"):
        newest_run("quickstart")


def test_nodes_may_hold_ids_names_and_files() -> None:
    Path("nodes.toml").write_text('nodes = [[0, "random"], [], ["12", "links/a.toml"]]')
    parser, _ = find("node")
    node = ("indigo", "--node-index", "0", "--ip", "127.0.0.1", "--node-num")
    words = ["--envs-per-worker", "2", "--max-lag", "0", "--wait-workers", "0"]
    words += ["--nodes", "nodes.toml"]
    actors = actors_config(parser.parse_args([*node, "3", *words])).actors
    assert actors.nodes == (("0", "random"), (), ("12", "links/a.toml"))
    assert actors.links == ["indigo/0", "random", "indigo/12", "links/a.toml"]
    assert (actors.envs_per_worker, actors.max_lag, actors.wait_workers) == (2, 0, 0.0)
    assert sum(actors.parts(own=False)) == 4
    as_before = actors_config(parser.parse_args([*node, "2"])).actors
    assert as_before == replace(recipe("indigo").actors, nodes=recipe("indigo").actors.nodes[:2])


def test_policies_say_what_they_are_not_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for word in ("noise in delay", "RTTs under 2 ms", "beside CUBIC", "32 flows"):
        assert word in said
    # The figures are those that the page of results has.
    row = shipped_rows()["one"]
    for suite, metric in (("noisy", "utilisation"), ("beside-bbr", "tolerable")):
        assert f"{row.of_shipped(suite, metric):.0%}" in said
    assert main(["policies", "--json", "-"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed if one.get("not_for")] == ["one"]


def test_the_list_says_what_each_thing_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(lines) > 50
    texts = [line.split(maxsplit=1)[1] for line in lines]  # each has one
    assert [text for text in texts if texts.count(text) > 1] == []
    assert main(["list", "actions"]) == 0
    assert "links" not in capsys.readouterr().out
    assert main(["list", "policies"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == list(shipped_policies())
    assert "subclass" not in capsys.readouterr().out + "".join(texts)
