"""One short run of the benchmark of workers."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import COMMANDS
from distrlcc.cli.main import main


@pytest.mark.slow
def test_two_workers_deliver_what_they_act(capfd: pytest.CaptureFixture[str]) -> None:
    words = ("actors", "--workers", "2", "--seconds", "6", "--set", "dagger.rollout_length=64")
    code = main(
        (*words, "--json", "-"), prog="bench", commands=COMMANDS, package="benchmarks.bench_"
    )
    assert code == 0
    (row,) = json.loads(capfd.readouterr().out)["actors"]
    assert row["workers"] == 2
    assert row["steps_per_second"] > 0.0
    assert row["acted_per_second"] > 0.0
    assert 0.0 < row["busy_share"] <= 1.0
    assert row["publish_ms_median"] <= row["publish_ms_p99"]
