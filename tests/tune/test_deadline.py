from __future__ import annotations

import subprocess
import sys

CODE = """
import sys, time
from distrlcc.runs.stopper import Stopper
from distrlcc.tune import deadline
deadline.STOP_SECONDS = 0.3
stopper = Stopper()
with deadline.Deadline(stopper, "too late"):
    stopper.signal = int(sys.argv[1])
    time.sleep(float(sys.argv[2]))
"""


def _run(signal: int, seconds: float) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(signal), str(seconds)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_only_a_stop_that_takes_too_long_is_cut_short() -> None:
    assert _run(15, 30.0) == (143, "too late\n")
    assert _run(0, 0.8) == (0, "")
    assert _run(15, 0.0) == (0, "")
