"""The benchmark of real packets measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_benchmark_of_packets_measures(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "benchmarks", "net")
    short = ("--seconds", "1", "--rates", "", "--flows", "1", "--json", str(tmp_path / "b.json"))
    subprocess.run([*words, *short], cwd=ROOT, check=True, timeout=100)
    told = json.loads((tmp_path / "b.json").read_text())
    assert told["sender"]["packets_per_second"] > 0
    assert 0.0 <= told["steps"]["alone"]["within_1ms"] <= 1.0
    (world,) = told["real_time"]
    assert world["flows"] == 1
    assert 0.0 < world["steps_per_second"] <= 101.0
    wrong = subprocess.run([*words, "--rates", "x"], cwd=ROOT, check=False, timeout=60)
    assert wrong.returncode == 2
