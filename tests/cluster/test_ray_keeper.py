"""The keeper starts Ray again where Ray gave itself up, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from distrlcc.cluster.ray_state import Plan, log_path, read_state

KEEPER = """
import sys
from distrlcc.cluster import ray_keeper
from distrlcc.cluster.ray_state import Plan

ray_keeper.ray_command = lambda plan: ["sh", "-c", sys.argv[1]]
ray_keeper.Keeper(Plan("127.0.0.2", "127.0.0.1")).run()
"""
SLOW = "Exception: The current node timed out during startup. This could happen"
# Stands in for `ray start`: a Ray that takes more than 30 s cannot be had at will.
SLOW_AT_FIRST = f"""
if mkdir "$ONCE"; then sleep 60 & echo "{SLOW}"; exit 1; fi
echo "Ray runtime started."; exec sleep 60
"""


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], subprocess.Popen[str]]:
    """Return a function that starts a keeper of a command in place of Ray's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("ONCE", str(tmp_path / "once"))

    def start(script: str) -> subprocess.Popen[str]:
        with log_path().open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-c", KEEPER, script], stdout=log, stderr=log, text=True,
                env=dict(os.environ),
            )  # fmt: skip

    return start


def test_a_start_that_took_too_long_is_tried_again(
    keep: Callable[[str], subprocess.Popen[str]], conftest: ModuleType
) -> None:
    keeper = keep(SLOW_AT_FIRST)
    try:

        def running() -> bool:
            state = read_state()
            return state is not None and state.phase == "running"

        conftest.wait_until(running, 30.0, "Ray runs at the second start")
        state = read_state()
        assert state is not None
        assert state.plan == Plan("127.0.0.2", "127.0.0.1")
        assert SLOW in log_path().read_text()
    finally:
        keeper.terminate()
        keeper.wait(30.0)
    assert [process for process in state.processes if process.alive()] == []


def test_any_other_failure_is_told_at_once(
    keep: Callable[[str], subprocess.Popen[str]],
) -> None:
    keeper = keep('mkdir "$ONCE" || echo twice; echo "Error: no such address"; exit 1')
    keeper.wait(30.0)
    state = read_state()
    assert state is not None
    assert (state.phase, state.reason) == ("ended", "Error: no such address")
    assert "twice" not in log_path().read_text()
