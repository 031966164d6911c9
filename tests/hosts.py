"""Hosts made of network namespaces, and commands that run on them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import pytest

from benchmarks import hosts
from benchmarks.hosts import rank_processes as rank_processes
from distrlcc.errors import ConfigError
from distrlcc.processes import descendants


class Hosts(hosts.Hosts):
    """Hosts that run distrlcc commands; the test is skipped where there can be none."""

    def __init__(self, count: int, folder: Path) -> None:
        try:
            super().__init__(count)
        except ConfigError as error:
            pytest.skip(str(error))
        self._folder = folder
        self._logs: dict[subprocess.Popen[bytes], Path] = {}

    def start(self, host: int, *words: str, module: str = "distrlcc") -> subprocess.Popen[bytes]:
        """Start a module's command on a host; its output goes to ``log(process)``."""
        path = self._folder / f"host{host}-{len(self._logs)}.log"
        command = self.command(host, sys.executable, "-m", module, *words)
        with path.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
            )
        self._logs[process] = path
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return self._logs[process].read_text(errors="replace")

    def __exit__(self, *error: object) -> None:
        for process in self._logs:
            if process.poll() is None:
                for child in descendants(process.pid):
                    child.signal(signal.SIGKILL)
                process.kill()
            process.wait(20)
        super().__exit__(*error)


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
