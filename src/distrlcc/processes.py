"""The machine's processes: their table, which ends with which, and which gets a core first."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
LAUNCHER = "DISTRLCC_LAUNCHER"  # in which a launcher tells its fork server which process it is
RANK_ENVIRONMENT = {
    # Parallelism belongs to processes with one thread each; NumPy reads these when imported.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # torch's C++ logs hosts without a name and every socket that fails; what matters is raised.
    "TORCH_CPP_LOG_LEVEL": "FATAL",
}
"""Variables of processes that train, where the user has not set them."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STARTED = 19  # of the fields after the name in /proc/PID/stat: when, in ticks since the boot


@dataclass(frozen=True)
class Process:
    """A process, and when it started, by which another one with its number is told apart."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Say whether it is still there."""
        return find_process(self.pid) == self

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.alive():
            with suppress(ProcessLookupError):  # it may end just now
                os.kill(self.pid, number)


def heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that a command acts on: not SIGHUP where nohup has it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in numbers if not (ignored and number == signal.SIGHUP)]


def find_process(pid: int) -> Process | None:
    """Return a process that runs; None if it is missing or dead."""
    found = _read_stat(pid)
    return found[1] if found else None


def descendants(pid: int) -> list[Process]:
    """Return the processes below one, parents first."""
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").iterdir():
        found = _read_stat(int(path.name)) if path.name.isdigit() else None
        if found:
            children.setdefault(found[0], []).append(found[1])
    below, waiting = list[Process](), [pid]
    while waiting:
        here = children.get(waiting.pop(0), [])
        below += here
        waiting += [process.pid for process in here]
    return below


def _read_stat(pid: int) -> tuple[int, Process] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _STARTED or fields[0] in "ZX":
        return None
    return int(fields[1]), Process(pid, int(fields[_STARTED]))


def die_with_parent(number: signal.Signals, *, parent: int | None = None) -> None:
    """Have the kernel send a signal when the thread ends that started this, or is gone by now."""
    if sys.platform == "linux":
        call_libc("prctl", _PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def marked(mark: str) -> list[Process]:
    """Return the other processes that began with a variable, NAME=VALUE, in their environment."""
    found = list[Process]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            process = find_process(int(path.parent.name))
            own = process is not None and process.pid == os.getpid()
            if process and not own and mark.encode() in path.read_bytes().split(b"\0"):
                found.append(process)
    return found


def kill_marked(mark: str, seconds: float) -> list[Process]:
    """Kill the processes with a mark; return those that do not end in time, s."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        for process in left:
            process.signal(signal.SIGKILL)
        time.sleep(0.05)
    return left


def keeper(mark: str, seconds: float, *words: str) -> list[str]:
    """Return a command that runs another, or waits for its input's end, and kills what is left."""
    script = "from distrlcc.processes import keep; keep()"
    return [sys.executable, "-P", "-c", script, mark, str(seconds), *words]


def keep() -> None:
    """Do what `keeper` says."""
    mark, seconds, *words = sys.argv[1:]
    name, _, value = mark.partition("=")
    if words:
        with subprocess.Popen(words, env={**os.environ, name: value}) as child:
            signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    else:
        sys.stdin.read()
    kill_marked(mark, float(seconds))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end."""
    call_libc("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def call_libc(function: str, *arguments: int | bytes) -> int:
    """Call what Python's ``os`` lacks; return the result, or raise OSError."""
    result = int(getattr(_libc, function)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def let_threads_preempt(yes: bool) -> None:
    """Let other threads interrupt this one, which computes, as soon as a message is there.

    Else Linux lets them wait for up to some milliseconds where both share a core, several times in
    each exchange. Threads that this one starts are scheduled normally; no privilege is needed.
    """
    _schedule("SCHED_BATCH" if yes else "SCHED_OTHER")


def run_on_time() -> bool:
    """Give this thread, which sleeps mostly, a core once its sleep is over; say whether it may.

    Linux allows it to root, and to a process with CAP_SYS_NICE or an RLIMIT_RTPRIO of 1. Threads
    that it starts are scheduled normally.
    """
    return _schedule("SCHED_FIFO", 1)


def _schedule(policy: str, priority: int = 0) -> bool:
    """Schedule this thread, but not what it starts; return whether the system has and allows it."""
    try:
        number = getattr(os, policy) | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, number, os.sched_param(priority))
    except (AttributeError, OSError):
        return False
    return True


def run_soon() -> bool:
    """Give this process a core before others, but not for ever; return whether that is allowed."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -19)
    except OSError:
        return False
    return True


def switch_threads_often() -> None:
    """Let Python's threads take turns within half a millisecond, in place of five."""
    sys.setswitchinterval(5e-4)
