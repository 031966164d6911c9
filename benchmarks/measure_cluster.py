"""Measure a Ray cluster of hosts made of network namespaces: starting, refusing, losing, rejoining.

Needs root and iproute2; takes about three minutes: ``python -m benchmarks.measure_cluster``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.hosts import Hosts

_SMALL = ("--cpus", "1", "--object-store-mb", "100")
_LIMIT = 180.0


class _Cluster:
    """Hosts and the commands that run on them."""

    def __init__(self, hosts: Hosts, folder: str) -> None:
        self.hosts = hosts
        self._environment = {**os.environ, "XDG_STATE_HOME": folder}

    def run(self, host: int, *words: str, token: str = "") -> tuple[int, str]:
        """Run a command; return its exit code and what it said."""
        extra = {"DISTRLCC_TOKEN": token} if token else {}
        done = subprocess.run(
            self.hosts.command(host, sys.executable, "-m", "distrlcc", *words),
            env={**self._environment, **extra}, capture_output=True, text=True,
            timeout=_LIMIT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return done.returncode, (done.stdout + done.stderr).strip()

    def timed(self, what: str, host: int, *words: str, token: str = "") -> str:
        """Run a command and say how long it took."""
        begin = time.monotonic()
        code, said = self.run(host, *words, token=token)
        _say(f"{what}: {time.monotonic() - begin:.1f} s, exit code {code}")
        _say("\n".join(f"    {line}" for line in said.splitlines()))
        return said

    def alive(self, host: int) -> bool:
        """Say whether the head takes a host for alive."""
        _, said = self.run(0, "cluster", "status", "--json", "-")
        nodes = json.loads(said)["nodes"]
        address = self.hosts.address(host)
        return any(node["alive"] for node in nodes if node["address"] == address)

    def processes(self, host: int) -> list[str]:
        """Return the processes on a host."""
        return subprocess.run(
            ["ip", "netns", "pids", self.hosts.names[host]],
            capture_output=True, text=True, timeout=10, check=True,
        ).stdout.split()  # fmt: skip


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _until(what: str, condition: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > _LIMIT:
            _say(f"{what}: not within {_LIMIT:.0f} s")
            return
        time.sleep(0.2)
    _say(f"{what}: after {time.monotonic() - begin:.1f} s")


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder, Hosts(2) as hosts:
        cluster = _Cluster(hosts, folder)
        head = f"{hosts.address(0)}:6379"
        try:
            said = cluster.timed("start", 0, "cluster", "start", "--show-token", *_SMALL)
            token = said[said.index("TOKEN=") :].removeprefix("TOKEN=").split()[0]
            join = ("cluster", "join", head)
            cluster.timed("join with another token", 1, *join, token=token[::-1])
            for what, address in (
                ("join where nothing listens", f"{head[:-4]}7000"),
                ("join an address that is nobody's", "10.77.0.99:6379"),
            ):
                cluster.timed(what, 1, "cluster", "join", address, token=token)
            cluster.timed("join", 1, *join, *_SMALL, "--rejoin", token=token)
            cluster.timed("doctor", 0, "doctor", "--cluster")
            closed = ("rule", "add", "pref", "10", "ipproto", "tcp", "dport", "6381", "blackhole")
            hosts.inside(0, "ip", *closed)
            cluster.timed("doctor with a closed port", 0, "doctor", "--cluster")
            hosts.inside(0, "ip", "rule", "del", "pref", "10")
            hosts.cut(1)
            _until("cut: given up by the head", lambda: not cluster.alive(1))
            _until("cut: ended Ray by itself", lambda: len(cluster.processes(1)) == 1)
            cluster.timed("status there", 1, "cluster", "status")
            hosts.mend(1)
            _until("mended: joined again", lambda: cluster.alive(1))
            cluster.timed("status", 0, "cluster", "status")
            cluster.timed("stop the member", 1, "cluster", "stop")
            cluster.timed("join without --rejoin", 1, *join, *_SMALL)
            cluster.timed("stop the head", 0, "cluster", "stop")
            _until("the member ended by itself", lambda: not cluster.processes(1))
            _say(f"left on the head: {cluster.processes(0)}")
        finally:
            for host in (1, 0):
                cluster.timed("stop", host, "cluster", "stop")


if __name__ == "__main__":
    main()
