"""Runs a user's code in a process of its own, so that whatever ends it is told in one line."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from distrlcc.limits import limits
from distrlcc.plugins import BEFORE, GUARDED, short
from distrlcc.processes import die_with_parent

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OVER = "\0"
_pipe: int | None = None  # where such a child says what it runs, and that it comes to its end


def on_plugin(reference: str) -> None:
    """Let the program go on in a child from its first plug-in on; this process says how it ends."""
    if _pipe is None:
        # Locks of threads would stay locked in a child, and children would not be its own.
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        if threading.active_count() > 1 or (children.exists() and children.read_text()):
            return
        if (ended := _apart()) is not None:
            code, line = ended
            if line:
                print(f"distrlcc: error: {line}", file=sys.stderr, flush=True)
            os._exit(code)  # what is to be left in order, the child has left so
    _say(f"{short(reference)}\n")


def owns_process() -> bool:
    """Say whether this process is the command's, and no program's or test's that calls it."""
    return on_plugin in BEFORE


def over(line: str = "") -> None:
    """Say, in the child, that its end from now on is no fault; with a line for the parent."""
    _say(f"{_OVER}{line[:4000]}")


def watched(work: Callable[[], tuple[int, str]], what: str) -> tuple[int, str]:
    """Return an exit code and a line of ``work`` in a child: 2 if it did not return or ended it."""
    if (ended := _apart(limits().start, what)) is not None:
        return ended
    code = 2
    try:
        code, line = work()
        over(line)
    finally:
        with suppress(OSError, ValueError):  # the line is not lost with the code's own output
            sys.stdout.flush()
        os._exit(code)  # whatever threads the code has left


def _say(text: str) -> None:
    if _pipe is not None:
        with suppress(OSError):
            os.write(_pipe, text.encode(errors="replace"))


def _apart(seconds: float = math.inf, what: str = "") -> tuple[int, str] | None:
    """Fork; return None in the child, and here its exit code and a line, once it has ended.

    The child gets the signals that come here. With a limit (s) it has a process group of its own,
    and nothing of it is left behind. Otherwise it shares the terminal with this process.
    """
    global _pipe
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    apart = seconds < math.inf
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    parent, (reader, writer) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        if apart:
            os.setpgid(0, 0)
        die_with_parent(signal.SIGKILL, parent=parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        GUARDED.add(os.getpid())
        os.close(reader)
        os.set_blocking(writer, False)
        _pipe = writer
        return None
    os.close(writer)
    if apart:
        with suppress(OSError):  # it has done so itself
            os.setpgid(child, child)
    # Wait, and pass on what comes, but not what the terminal has sent to the child, too.
    passed, code, deadline = list[int](), None, time.monotonic() + seconds
    while code is None and time.monotonic() < deadline:
        found = None
        with suppress(OSError):  # it was stopped for longer than it waits
            found = signal.sigtimedwait(_PASSED_ON, limits().tick)
        if found is not None and found.si_signo in _PASSED_ON:
            passed.append(found.si_signo)
            if apart or found.si_code <= 0:
                os.kill(child, found.si_signo)  # it is not reaped yet
        pid, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else None
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Say how it ended.
    os.set_blocking(reader, False)
    with open(reader, "rb") as file:
        names, finished, line = (file.read() or b"").decode(errors="replace").partition(_OVER)
    if apart:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    ran = ", ".join(dict.fromkeys(names.split("\n")[:-1])) or what
    if code is None:
        os.waitpid(child, 0)
        return 2, f"{ran}: it has not returned for {seconds:g} s; see that it ends"
    if finished and code >= 0:
        return code, line
    if -code in passed:
        return 128 - code, ""
    known = {each.value: each.name for each in signal.Signals}  # real-time ones have no name
    how = f"by signal {known.get(-code, -code)}" if code < 0 else f"with exit code {code}"
    return 2, f"the process was ended {how} while it ran {ran}; 'distrlcc check plugin' tries each"
