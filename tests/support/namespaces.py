"""Hosts made of network namespaces on a bridge, for benchmarks and tests; needs root and ``ip``.

And the processes of a run on one of them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from distrlcc.errors import ConfigError
from distrlcc.limits import limits
from distrlcc.processes import descendants

_NETWORK = "10.77.0"
_numbers = itertools.count()


class Hosts:
    """A context: the namespaces are there inside it and gone after it."""

    def __init__(self, count: int) -> None:
        """Plan hosts with the addresses 10.77.0.1, 10.77.0.2 and so on.

        Raises:
            ConfigError: Namespaces cannot be made here.
        """
        missing = "root" if os.geteuid() else "iproute2's ip" if not shutil.which("ip") else ""
        if missing:
            raise ConfigError(f"hosts made of network namespaces need {missing}")
        stem = f"dl{os.getpid()}-{next(_numbers)}"
        self.names = [f"{stem}-{index}" for index in range(count)]
        self._bridge = f"{stem}-b"

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        _ip("netns", "add", self._bridge)
        self._inside(self._bridge, "ip", "link", "add", "br0", "type", "bridge")
        self._inside(self._bridge, "ip", "link", "set", "br0", "up")
        for index, name in enumerate(self.names):
            _ip("netns", "add", name)
            self._inside(name, "ip", "link", "set", "lo", "up")
            cable = f"ip link add eth0 type veth peer name p{index} netns {self._bridge}"
            self._inside(name, *cable.split())
            self._inside(self._bridge, "ip", "link", "set", f"p{index}", "master", "br0", "up")
            self._inside(name, "ip", "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
            self._inside(name, "ip", "link", "set", "eth0", "up")

    def __exit__(self, *error: object) -> None:
        for name in [*self.names, self._bridge]:
            with suppress(subprocess.SubprocessError):
                _ip("netns", "del", name)

    def _inside(self, name: str, *words: str) -> None:
        _ip("netns", "exec", name, *words)

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"{_NETWORK}.{host + 1}"

    def command(self, host: int, *words: str) -> list[str]:
        """Return a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *words]

    def inside(self, host: int, *words: str) -> None:
        """Run a command on a host and wait for it."""
        self._inside(self.names[host], *words)

    def processes(self, host: int) -> list[int]:
        """Return the processes on a host."""
        command = ["ip", "netns", "pids", self.names[host]]
        return [int(pid) for pid in subprocess.check_output(command, text=True).split()]

    def shape(self, mbit: float) -> None:
        """Bound what each host sends, Mbit/s; 0 sets it free."""
        for name in self.names:
            with suppress(subprocess.SubprocessError):
                self._inside(name, "tc", "qdisc", "del", "dev", "eth0", "root")
            if mbit:
                limit = f"tc qdisc add dev eth0 root tbf rate {mbit}mbit burst 64kb latency 100ms"
                self._inside(name, *limit.split())

    def lose(self, host: int, share: float) -> None:
        """Lose a share of the packets that a host sends; 0 loses none."""
        port = ("dev", f"p{host}")
        with suppress(subprocess.SubprocessError):
            self._inside(self._bridge, "tc", "qdisc", "del", *port, "clsact")
        if share:
            # Classic BPF: load a random word, compare, return "go on" or "drop".
            least = min(int(share * 2**32), 2**32 - 1)
            drop = f"4,32 0 0 4294963256,53 0 1 {least},6 0 0 4294967295,6 0 0 2"
            self._inside(self._bridge, "tc", "qdisc", "add", *port, "clsact")
            rule = ("ingress", "bpf", "bytecode", drop, "da")
            self._inside(self._bridge, "tc", "filter", "add", *port, *rule)

    def cut(self, host: int) -> None:
        """Pull a host's cable."""
        self._inside(self._bridge, "ip", "link", "set", f"p{host}", "down")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        self._inside(self._bridge, "ip", "link", "set", f"p{host}", "up")


def fork_server(pid: int) -> int | None:
    """Return the fork server that a launcher started."""
    for child in descendants(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            files = (Path(f"/proc/{child.pid}/{name}") for name in ("cmdline", "comm"))
            if any(b"forkserver" in file.read_bytes() for file in files):
                return child.pid
    return None


def rank_processes(pid: int) -> list[int]:
    """Return the rank processes that a launcher started, in order of their start."""
    server = fork_server(pid)
    return sorted(rank.pid for rank in descendants(server)) if server else []


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=limits().join, stderr=subprocess.DEVNULL)
