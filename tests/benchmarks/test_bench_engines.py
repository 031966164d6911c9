"""One short run of the benchmark of engines."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import COMMANDS
from distrlcc.cli.main import main


@pytest.mark.slow
def test_threads_and_torch_rpc_are_measured(capfd: pytest.CaptureFixture[str]) -> None:
    words = ("engines", "--engines", "in-process,torch-rpc", "--workers", "2", "--seconds", "0.2")
    code = main(
        (*words, "--json", "-"), prog="bench", commands=COMMANDS, package="benchmarks.bench_"
    )
    assert code == 0
    rows = json.loads(capfd.readouterr().out)["engines"]
    assert set(rows) == {"in-process", "torch-rpc"}
    for row in rows.values():
        assert min(row["calls_per_second"], row["segments_per_second"]) > 0.0
        assert 0.0 < row["broadcast_ms_median"] <= row["broadcast_ms_p99"]
