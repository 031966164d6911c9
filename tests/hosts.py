"""Hosts made of network namespaces, and commands that run on them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import IO

from benchmarks import hosts
from distrlcc.processes import descendants


class Hosts(hosts.Hosts):
    """Hosts that run distrlcc commands."""

    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count)
        self._logs: dict[subprocess.Popen[bytes], IO[bytes]] = {}
        self._folder = folder

    def start(self, host: int, *words: str, module: str = "distrlcc") -> subprocess.Popen[bytes]:
        """Start a module's command on a host; its output goes to ``log(process)``."""
        log = (self._folder / f"host{host}-{len(self._logs)}.log").open("wb")
        process = subprocess.Popen(
            self.command(host, sys.executable, "-m", module, *words),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
        )
        self._logs[process] = log
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return Path(self._logs[process].name).read_text(errors="replace")

    def close(self) -> None:
        for process, log in self._logs.items():
            if process.poll() is None:
                for child in descendants(process.pid):
                    child.signal(signal.SIGKILL)
                process.kill()
            process.wait(20)
            log.close()
        self.__exit__(None, None, None)


def rank_processes(pid: int) -> list[int]:
    """Return the rank processes that a launcher started, in order of their start."""
    for child in descendants(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            files = (Path(f"/proc/{child.pid}/{name}") for name in ("cmdline", "comm"))
            if any(b"forkserver" in file.read_bytes() for file in files):
                return sorted(rank.pid for rank in descendants(child.pid))
    return []


def stop_fork_server() -> None:
    """End multiprocessing's fork server, which keeps the files that it began with."""
    forkserver._forkserver._stop()


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
