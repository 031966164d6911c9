"""Hosts made of network namespaces, and commands that run on them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from itertools import product
from multiprocessing import forkserver
from pathlib import Path

import pytest

from distrlcc.errors import ConfigError
from distrlcc.processes import descendants
from tests.support import namespaces
from tests.support.namespaces import fork_server as fork_server
from tests.support.namespaces import rank_processes as rank_processes


class Hosts(namespaces.Hosts):
    """Hosts that run distrlcc commands; the test is skipped where there can be none."""

    def __init__(self, count: int, folder: Path) -> None:
        try:
            super().__init__(count)
        except ConfigError as error:
            pytest.skip(str(error))
        self._folder = folder
        self.token = "of-the-hosts-of-a-test"
        """What commands have as their DISTRLCC_TOKEN; empty: none."""
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
                env=os.environ | {"DISTRLCC_TOKEN": self.token},
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


BUSY = "was too busy for these figures to count"
"""What a sender says on a busy machine, with exit code 1."""


class Command:
    """A distrlcc command that runs."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / f"{words[0]}{len(list(folder.glob('*.log')))}.log"
        with self._log.open("wb") as log:
            words = (sys.executable, "-m", "distrlcc", *words)
            null, both = subprocess.DEVNULL, subprocess.STDOUT
            self.process = subprocess.Popen(words, stdout=log, stderr=both, stdin=null, cwd=folder)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until(self, words: str, seconds: float = 60.0) -> str:
        """Wait for words, and return what the pattern's group is."""
        deadline = time.monotonic() + seconds
        while (match := re.search(words, self.said)) is None:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)
        return match[1] if match.groups() else match[0]

    def end(self, seconds: float = 60.0) -> int:
        """Return its exit code; that figures do not count, on a busy machine, is no fault."""
        code = self.process.wait(seconds)
        return 0 if code == 1 and BUSY in self.said and "error: " not in self.said else code


def listening(pids: Collection[int]) -> set[tuple[str, int]]:
    """Return the addresses and TCP ports at which processes of one network namespace listen."""
    own, found = set[str](), set[tuple[str, int]]()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                own.add(os.readlink(file))
    for pid, kind in product(list(pids)[:1], ("tcp", "tcp6")):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                address, port = (bytes.fromhex(part) for part in fields[1].split(":"))
                # What is IPv4 in IPv6 clothes has it in the last four bytes, in the host's order.
                found.add((".".join(map(str, address[-1:-5:-1])), int.from_bytes(port)))
    return found


def stop_fork_server() -> None:
    """End multiprocessing's fork server, which keeps the files that it began with."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def wait_until(condition: Callable[..., bool], seconds: float = 10.0, what: str = "it") -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
