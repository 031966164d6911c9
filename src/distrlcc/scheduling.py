"""Which of the threads that want a core gets it: small ones at once, paced ones before all."""

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


def run_on_time() -> bool:
    """Give this thread a core as soon as its sleep is over; return whether the system allows it.

    Linux allows it to root, and to a process with CAP_SYS_NICE or an RLIMIT_RTPRIO of 1. For
    threads that sleep most of the time. What the thread starts is scheduled normally.
    """
    if not hasattr(os, "SCHED_FIFO"):
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def run_normally() -> None:
    """Take `run_on_time` back, for a thread that turns out not to sleep."""
    if hasattr(os, "SCHED_FIFO"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def run_soon() -> bool:
    """Give this process a core before others, but not all of it; return whether that is allowed.

    For what may be busy for seconds: under SCHED_FIFO it would let nothing else run.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -19)
    except OSError:
        return False
    return True


def switch_threads_often() -> None:
    """Let Python's threads take turns within half a millisecond, in place of five."""
    sys.setswitchinterval(_SWITCH_SECONDS)
