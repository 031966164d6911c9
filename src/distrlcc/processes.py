"""Processes told apart by when they started, and those below one."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

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
            with contextlib.suppress(ProcessLookupError):  # it may end just now
                os.kill(self.pid, number)


def find_process(pid: int) -> Process | None:
    """Return a process that runs; None where there is none, or a dead one."""
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
    """Return a process's parent and the process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _STARTED or fields[0] in "ZX":
        return None
    return int(fields[1]), Process(pid, int(fields[_STARTED]))
