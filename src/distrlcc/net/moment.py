"""The moment at which a sender that is ready begins: whoever started it names one for all.

A sender says ``ready`` in a line of its own, and reads a line: a moment of the machine's monotonic
clock in s, or nothing for now.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable
from typing import TextIO

from distrlcc.errors import LinkError

READY = "ready"
_PATIENCE_SECONDS = 600.0
_LONGEST_LINE = 100
_FURTHEST_SECONDS = 86_400.0
_LOOK_SECONDS = 0.1


def wait_for_moment(
    out: TextIO, *, source: int = 0, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Say that all is ready, and return at the moment that is named.

    Args:
        out: Where to say it.
        source: A descriptor to read the moment from.
        stopping: Asked now and then; True ends the wait.

    Raises:
        LinkError: None was named, or it was stopped before.
    """
    out.write(f"{READY}\n")
    out.flush()
    line = _line(source, stopping).strip()
    try:
        moment = float(line or 0.0)
        named = math.isfinite(moment) and moment < time.monotonic() + _FURTHEST_SECONDS
    except ValueError:
        named = False
    if not named:
        raise LinkError(
            f"{line[:_LONGEST_LINE]!r} is no moment to begin; expected s of the monotonic clock, "
            "at most a day ahead, or nothing"
        )
    while (left := moment - time.monotonic()) > 0:
        if stopping():
            raise LinkError("stopped before the moment to begin")
        time.sleep(min(left, _LOOK_SECONDS))


def _line(source: int, stopping: Callable[[], bool]) -> str:
    """Read one line."""
    deadline, line = time.monotonic() + _PATIENCE_SECONDS, b""
    while b"\n" not in line and len(line) < _LONGEST_LINE:
        if stopping():
            raise LinkError("stopped before the moment to begin was named")
        if time.monotonic() > deadline:
            raise LinkError(f"no moment to begin was named within {_PATIENCE_SECONDS:.0f} s")
        if select.select([source], [], [], _LOOK_SECONDS)[0]:
            data = os.read(source, _LONGEST_LINE)
            if not data:
                raise LinkError("standard input ended before it named the moment to begin")
            line += data
    return line.partition(b"\n")[0].decode(errors="replace")
