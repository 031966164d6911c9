"""The benchmark of tuning on a tiny recipe: figures that make sense, and wrong seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from distrlcc.cli.main import main

TINY = """tune --population 2 --interval 1 --updates 2 --seeds 0 --set num_envs=4
    ppo.rollout_length=16 ppo.minibatch_size=64 held_out.links=1 held_out.seconds=0.2
    env.suites=["random"] env.suite_weights=[] env.episode_s=1.0"""


def bench(*words: str) -> int:
    return main(words, commands=benchmarks.COMMANDS, package="benchmarks.bench_")


@pytest.mark.slow
def test_both_methods_train_as_much(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'distrlcc[ray]'")
    target = tmp_path / "found.json"
    assert bench(*TINY.split(), "--out", str(tmp_path / "out"), "--json", str(target)) == 0
    pbt, random = json.loads(target.read_text())["tune"]
    assert (pbt["method"], random["method"]) == ("pbt", "random")
    assert pbt["steps"] == random["steps"] == 2 * 2 * 4 * 16
    assert all(one["best"] >= one["final"] >= one["median"] for one in (pbt, random))


def test_seeds_that_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("tune", "--out", str(tmp_path / "b"), "--seeds", "1,1") == 2
    assert "different whole numbers" in capsys.readouterr().err
