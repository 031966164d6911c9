"""A few seconds of coverage-guided fuzzing where atheris is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is missing: pip install atheris"
)
def test_nothing_but_wire_errors(tmp_path: Path) -> None:
    harness = Path(__file__).with_name("fuzz_wire.py")
    command = [sys.executable, str(harness), "-max_total_time=5", f"-artifact_prefix={tmp_path}/"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
