"""A run that is attacked: its commands on hosts, their processes, what they say and write."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks.fault import HOSTS
from distrlcc.processes import Process, descendants, die_with_parent, find_process
from tests.support.namespaces import Hosts, fork_server, rank_processes

MARK = "DISTRLCC_CHAOS"
_TOKEN = "of-these-hosts-and-no-stranger"
_ALL = """network.hidden=[8] env.episode_s=0.5 total_steps=1000000000 max_seconds=0
    held_out.every=10 held_out.links=2 held_out.seconds=0.3 checkpoint_every=2"""
_EQUALS = f"""{_ALL} num_envs=12 ppo.rollout_length=16 ppo.minibatch_size=64 env.suites=["random"]
    env.suite_weights=[] distributed.straggler_share=0"""
_ACTORS = f"""{_ALL} dagger.rollout_length=64 dagger.sequence_length=32 dagger.num_epochs=1
    dagger.capacity=4000 dagger.minibatch_size=500 dagger.lr_schedule=none
    actors.envs_per_worker=1 actors.nodes=[["0","1"],["2","3"],["4","5"]]"""
_TRAIN, _NODE, _RAY = "train quickstart", "node --node-num 3", "train --engine ray"
TOPOLOGIES = {
    "single": f"{_TRAIN} --set {_EQUALS}",
    "ranks": f"{_TRAIN} --processes 3 --restarts 50 --debug --set {_EQUALS}",
    "nodes": f"{_NODE} quickstart --topology decentralized --restarts 50 --debug --set {_EQUALS}",
    "actors": f"{_NODE} distrlcc --set {_ACTORS} actors.segments_per_update=4",
    "ray-ranks": f"{_RAY} quickstart --processes 3 --debug --set {_EQUALS}",
    "ray-actors": f"{_RAY} distrlcc --topology actor-learner --workers 2 --restarts 50 "
    f"--set {_ACTORS} actors.segments_per_update=2",
}
"""The command of each topology, tiny but endless."""
_UPDATE = re.compile(rb'^\{"update": ?(\d+)', re.MULTILINE)
_TITLES = re.compile(rb"ray::(RayRank|RayTrainer|Host)\b")
_SCORED_EVERY = 10


class ChaosRun:
    """The commands of one run, one on each host; they may be started again."""

    def __init__(self, topology: str, hosts: Hosts, folder: Path, out: Path, *words: str) -> None:
        """Take the hosts, the folder of logs and of temporary files, and the run's folder."""
        self.topology, self.hosts, self.folder, self.out = topology, hosts, folder, out
        self.launched = dict[int, subprocess.Popen[bytes]]()
        self.started = dict[int, float]()
        """When each command was started."""
        self._words = words
        self._seen = set[Process]()
        (folder / "tmp").mkdir()

    def start(self, *, again: bool = False) -> None:
        """Start the command on every host; ``again`` goes on with the run."""
        self.launched.clear()
        for host in range(HOSTS.get(self.topology, 1)):
            self.start_host(host, again=again)

    def start_host(self, host: int, *, again: bool = False) -> None:
        """Start one host's command."""
        words = shlex.split(TOPOLOGIES[self.topology].replace('"', '\\"'))
        where, leads = ["--out", str(self.out)], again and host == 0
        if words[0] == "node":
            words += ["--node-index", str(host), "--ip", self.hosts.address(0)]
        if leads:
            where = ["--load", str(self.out)] if self.topology == "actors" else [*where, "--resume"]
        words[1:1] = [*self._words, *where]
        self.started[host] = time.monotonic()
        own = {MARK: str(self.folder), "TMPDIR": str(self.folder / "tmp"), "DISTRLCC_TOKEN": _TOKEN}
        with self.log(host).open("ab") as log:
            self.launched[host] = subprocess.Popen(
                self.hosts.command(host, sys.executable, "-m", "distrlcc", *words),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=os.environ | own,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGKILL),
            )

    def log(self, host: int) -> Path:
        """Return where a host's command writes."""
        return self.folder / f"host{host}.log"

    def said(self, since: Mapping[Path, int] = MappingProxyType({})) -> str:
        """Return what all commands have said, or what is new since an earlier `marks`."""
        texts = []
        for path in sorted(self.folder.glob("*.log")):
            with path.open(errors="replace") as log:
                log.seek(since.get(path, 0))
                texts.append(log.read())
        return "".join(texts)

    def told(self, since: Mapping[Path, int] = MappingProxyType({})) -> str:
        """Return the lines but those of who has joined."""
        lines = self.said(since).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("joined"))

    def marks(self) -> dict[Path, int]:
        """Return how much all commands have said."""
        return {path: path.stat().st_size for path in self.folder.glob("*.log")}

    def codes(self) -> dict[int, int]:
        """Return the exit codes of the commands that have ended, by host."""
        found = {host: process.poll() for host, process in self.launched.items()}
        return {host: code for host, code in found.items() if code is not None}

    def newest(self) -> int:
        """Return the newest update that has a row."""
        return max(map(int, _UPDATE.findall(self._tail())), default=0)

    def _tail(self) -> bytes:
        with suppress(FileNotFoundError), (self.out / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return file.read()
        return b""

    def complete(self) -> bool:
        """Say whether all planned ranks took part in the newest update."""
        ranks = re.findall(rb'"ranks": ?([\d.]+)', self._tail())
        return not self.topology.endswith(("ranks", "nodes")) or ranks[-1:] == [b"3.0"]

    def wait_for(self, aim: str, seconds: float) -> bool:
        """Wait until it writes a file, or scores an update; say whether it did in time."""
        deadline = time.monotonic() + seconds
        folders = (self.out, self.out / "checkpoints")
        while time.monotonic() < deadline:
            if aim == "score":
                last = self._tail().rstrip().rpartition(b"\n")[2]
                row = _UPDATE.match(last)
                if row and int(row[1]) % _SCORED_EVERY == 0 and b"held_out" not in last:
                    return True
                continue
            with suppress(OSError):
                if any(name.endswith(".tmp") for place in folders for name in os.listdir(place)):
                    return True
        return False

    def ranks(self, host: int) -> list[int]:
        """Return the processes on a host that learn or act."""
        if host not in self.launched:
            return []
        pid = self.launched[host].pid
        if self.topology == "single":
            return [pid]
        if not self.topology.startswith("ray"):
            return rank_processes(pid)
        return sorted(p.pid for p in descendants(pid) if _TITLES.match(_read(p.pid, "cmdline")))

    def leader(self) -> int | None:
        """Return the process that writes the metrics."""
        for pid in (pid for host in self.launched for pid in self.ranks(host)):
            with suppress(OSError):
                files = (os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
                if any(file.endswith("/metrics.jsonl") for file in files):
                    return pid
        return None

    def find(self, role: str, host: int, pick: float) -> list[int]:
        """Return the processes with a role; a share picks one of several."""
        if host not in self.launched or host in self.codes():
            return []
        launcher, ranks, leader = self.launched[host].pid, self.ranks(host), self.leader()
        server = fork_server(launcher)
        below = [process.pid for process in descendants(launcher)]
        tunnels = [pid for pid in below if b"parallel.tunnel" in _read(pid, "cmdline")]
        # An actor that is no worker yet has no name to be missed by.
        joined = self.said() if self.topology == "ray-actors" else ""
        others = [pid for pid in ranks if pid != leader]
        found = {
            "launcher": [launcher],
            "leader": [leader] if leader else ranks,
            "all": ranks,
            "server": [server] if server else [],
            "rank": [pid for pid in others if not joined or f"(process {pid} on" in joined],
            "tunnel": tunnels,
            "helper": [pid for pid in below if pid not in (*ranks, *tunnels, server)],
        }[role]
        return found if role == "all" else found[int(pick * len(found)) :][:1]

    def processes(self) -> list[Process]:
        """Return all that live, of this start and of earlier ones.

        They are known by a mark in their environment; those that write a title over it, as Ray's
        do, by having been seen below a command.
        """
        mark = f"{MARK}={self.folder}".encode()
        for process in self.launched.values():
            self._seen.update(descendants(process.pid))
        for path in Path("/proc").glob("[0-9]*"):
            if mark in _read(int(path.name), "environ").split(b"\0"):
                found = find_process(int(path.name))
                self._seen.update([found] if found else [])
        self._seen = {process for process in self._seen if process.alive()}
        return sorted(self._seen, key=lambda process: process.pid)

    def kill(self) -> None:
        """Kill all that live."""
        for process in self.processes():
            process.signal(signal.SIGKILL)
        for command in self.launched.values():
            command.wait()


def name(pid: int) -> str:
    """Return a process's command line, shortened."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:100].strip()


def resident_mb(pid: int) -> float:
    """Return a process's resident memory; 0 if it has gone."""
    pages = _read(pid, "statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6 if pages else 0.0


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition; say whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
