"""Runs a user's code in a process of its own, which is ended where it does not come back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import FrameType

from distrlcc.limits import limits
from distrlcc.plugins import GUARDED, theirs
from distrlcc.processes import die_with_parent


def watched(work: Callable[[], tuple[int, str]], what: str) -> tuple[int, str]:
    """Return what ``work`` returned: an exit code, and a line to say.

    It is 2 where one call of the user's code did not return within `Limits.stall` (importing it
    within `Limits.start`), or where the code ended its process. Nothing is left running.
    """
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, sender, os.getpid()))
    process.start()
    assert process.pid is not None
    group = process.pid
    with suppress(OSError):  # it has done so itself
        os.setpgid(group, group)
    sender.close()
    try:
        silence = limits().stall
        while receiver.poll(silence):
            told: float | tuple[int, str] = receiver.recv()
            if not isinstance(told, float):
                return told
            silence = told
        return 2, f"{what}: it has not returned for {silence:g} s; see that it ends"
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return 2, f"{what}: it ended its process ({how})"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        process.join()


def _work(work: Callable[[], tuple[int, str]], sender: Connection, parent: int) -> None:
    """Work in the child, and tell the parent all the time how long to wait for the next word."""
    os.setpgid(0, 0)
    GUARDED.add(os.getpid())
    die_with_parent(signal.SIGKILL, parent=parent)
    main, over = threading.current_thread().ident or 0, threading.Event()
    watch = threading.Thread(target=_watch, args=(main, over, sender), daemon=True)
    watch.start()
    try:
        told = work()
        over.set()
        watch.join()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sender.send(told)
    finally:
        os._exit(0)  # whatever threads the code has left


def _watch(main: int, over: threading.Event, sender: Connection) -> None:
    """Say that the code comes back, as long as it does.

    It does not while one call of a user's function lasts, or while one compiled call, such as that
    of a scheme, uses the processor: compiling takes less.
    """
    clock, limit = time.pthread_getcpuclockid(main), limits().stall
    last: FrameType | None = None
    place: tuple[FrameType | None, int] = None, 0
    begun = 0.0
    while not over.wait(limits().tick):
        inner = frame = sys._current_frames().get(main)
        outer = None
        while frame is not None:
            outer = frame if theirs(frame.f_code.co_filename) else outer
            frame = frame.f_back
        used, before = time.clock_gettime(clock), place
        place = inner, inner.f_lasti if inner is not None else 0
        begun = begun if place == before else used
        if used - begun < limit and (outer is None or outer is not last):
            imports = outer is not None and outer.f_code.co_name == "<module>"
            sender.send(limits().start if imports else limit)
        last = outer
