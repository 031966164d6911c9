"""Lets a process's small threads run at once though its main thread computes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_SWITCH_SECONDS = 5e-4


def let_threads_preempt(yes: bool) -> None:
    """Let other threads interrupt this one, which computes, as soon as a message is there.

    Else Linux lets them wait for up to some milliseconds where both share a core, several times in
    each exchange. Threads that this one starts are scheduled normally; no privilege is needed.
    """
    if hasattr(os, "SCHED_BATCH"):
        policy = os.SCHED_BATCH | os.SCHED_RESET_ON_FORK if yes else os.SCHED_OTHER
        with suppress(OSError):
            os.sched_setscheduler(0, policy, os.sched_param(0))


def switch_threads_often() -> None:
    """Let Python's threads take turns within half a millisecond, in place of five."""
    sys.setswitchinterval(_SWITCH_SECONDS)
