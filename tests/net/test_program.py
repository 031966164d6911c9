"""Someone else's program as a sender or a receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrlcc.errors import LinkError
from distrlcc.net.emulator.program import run_program
from tests.hosts import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of its own")
LINGERS = "trap '' TERM; sleep 6543 & sleep 6543"


def _left() -> int:
    return len(subprocess.run(["pgrep", "-fx", "sleep 6543"], stdout=-1, check=False).stdout)


def test_a_program_that_fails_says_so_by_its_last_line() -> None:
    with pytest.raises(LinkError, match=r"^'echo a; echo b; false' .* exit code 1: b$"):
        run_program("echo a; echo b; false", 5.0)
    with pytest.raises(LinkError, match=r"exit code 7: no output$"):
        run_program("exit 7", 5.0)
    run_program("true", 5.0)


def test_what_goes_on_for_too_long_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "kill=0.2")
    run_program(f"{LINGERS.rpartition(' sleep')[0]} touch {tmp_path}/begun; sleep 6543", 3.0)
    assert (tmp_path / "begun").exists()
    wait_until(lambda: not _left(), 20.0, "the end of all")


def test_it_ends_with_the_process_that_runs_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "distrlcc.net.emulator.program", "receiver", "60"]
    process = subprocess.Popen([*words, f"touch {tmp_path}/begun; {LINGERS}"])
    wait_until((tmp_path / "begun").exists, 30.0, "its start")
    wait_until(lambda: _left() > 0, 20.0, "what it starts")
    process.kill()
    process.wait(10.0)
    wait_until(lambda: not _left(), 20.0, "the end of all")
