"""Hosts made of network namespaces, and commands that run on them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest


class Hosts:
    """Namespaces on one bridge, with the addresses 10.77.0.1, 10.77.0.2 and so on."""

    def __init__(self, count: int, folder: Path) -> None:
        self.prefix = f"dl{os.getpid()}"
        self.names = [f"{self.prefix}-{index}" for index in range(count)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.logs: list[IO[bytes]] = []
        self._folder = folder
        self._bridge = f"{self.prefix}-b"
        self._ip("netns", "add", self._bridge)
        self._inside(self._bridge, "ip", "link", "add", "br0", "type", "bridge")
        self._inside(self._bridge, "ip", "link", "set", "br0", "up")
        for index, name in enumerate(self.names):
            self._ip("netns", "add", name)
            self._inside(name, "ip", "link", "set", "lo", "up")
            self._inside(
                name, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", f"p{index}",
                "netns", self._bridge,
            )  # fmt: skip
            self._inside(self._bridge, "ip", "link", "set", f"p{index}", "master", "br0", "up")
            self._inside(name, "ip", "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
            self._inside(name, "ip", "link", "set", "eth0", "up")

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, timeout=20)

    def _inside(self, name: str, *words: str) -> None:
        self._ip("netns", "exec", name, *words)

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def inside(self, host: int, *words: str) -> None:
        """Run a command on a host and wait for it."""
        self._inside(self.names[host], *words)

    def start(self, host: int, *words: str) -> subprocess.Popen[bytes]:
        """Start a distrlcc command on a host; its output goes to ``log(process)``."""
        log = (self._folder / f"host{host}-{len(self.logs)}.log").open("wb")
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, "-m", "distrlcc", *words],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self._folder,
        )  # fmt: skip
        self.processes.append(process)
        self.logs.append(log)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return Path(self.logs[self.processes.index(process)].name).read_text(errors="replace")

    def cut(self, host: int) -> None:
        """Pull the host's cable."""
        self._inside(self._bridge, "ip", "link", "set", f"p{host}", "down")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        self._inside(self._bridge, "ip", "link", "set", f"p{host}", "up")

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                for child in descendants(process.pid):
                    _kill(child)
                process.kill()
            process.wait(20)
        for log in self.logs:
            log.close()
        for name in [*self.names, self._bridge]:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=20)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes below one, parents first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = [int(child) for child in children]
    return found + [deeper for child in found for deeper in descendants(child)]


def rank_processes(pid: int) -> list[int]:
    """Return the rank processes that a launcher started, in order of their start."""
    return sorted(
        child
        for child in descendants(pid)
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    )


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def make_hosts(tmp_path: Path) -> Iterator[Callable[[int], Hosts]]:
    """Return a function that makes hosts; they are gone after the test."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2's ip")
    made: list[Hosts] = []

    def make(count: int) -> Hosts:
        made.append(Hosts(count, tmp_path))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()
