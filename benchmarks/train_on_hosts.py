"""Train on a Ray cluster of three hosts made of network namespaces, while they die and come back.

Both topologies; raylets are killed, machines join in mid-run, a link is cut and mended, and the
trainer's machine dies. Needs root and iproute2, and some eight minutes:
``python -m benchmarks.train_on_hosts``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.hosts import Hosts

_LIMIT = 180.0
_SMALL = """total_steps=1000000000 held_out.every=100000 held_out.links=2 held_out.seconds=1
checkpoint_every=10"""
_DAGGER = """dagger.rollout_length=64 dagger.sequence_length=32 dagger.capacity=8000
dagger.minibatch_size=1000 network.hidden=[8] actors.segments_per_update=4
actors.envs_per_worker=1 dagger.lr_schedule=none"""
_PPO = "num_envs=24 ppo.rollout_length=32"


class _Cluster:
    """Hosts, and what runs on them."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        own = {"XDG_STATE_HOME": str(folder), "DISTRLCC_TOKEN": "of-three-hosts-alone"}
        self._where: dict[str, Any] = {"env": os.environ | own, "cwd": folder}

    def run(self, host: int, *words: str, must: bool = True) -> None:
        """Run a command, which must end well."""
        begin = time.monotonic()
        command = self._command(host, *words)
        form: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _LIMIT}
        done = subprocess.run(command, check=False, **form, **self._where)
        _say(f"host {host}: {' '.join(words[:2])}: {time.monotonic() - begin:.1f} s")
        if done.returncode and must:
            raise SystemExit(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")

    def begin(self, host: int, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a command."""
        with log.open("wb") as file:
            command = self._command(host, *words)
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **self._where)

    def join(self, host: int) -> None:
        """Let a host be a machine of the cluster."""
        share = "--cpus 2 --resource trainer=1 --object-store-mb 80 --rejoin"
        self.run(host, "cluster", "join", f"{self.hosts.address(0)}:6379", *share.split())

    def find(self, host: int, words: str) -> list[int]:
        """Return the processes on a host whose command line has these words."""
        command = ["ip", "netns", "pids", self.hosts.names[host]]
        pids = subprocess.check_output(command, text=True, timeout=10).split()
        return [pid for pid in map(int, pids) if words in _command_line(pid)]

    def kill_raylet(self, host: int) -> None:
        """Kill a host's part of Ray."""
        for pid in self.find(host, "raylet/raylet"):
            os.kill(pid, signal.SIGKILL)

    def _command(self, host: int, *words: str) -> list[str]:
        return self.hosts.command(host, sys.executable, "-m", "distrlcc", *words)


class _Run:
    """A training, started on host 0."""

    def __init__(self, cluster: _Cluster, name: str, *words: str) -> None:
        self._log, self.out = cluster.folder / f"{name}.log", cluster.folder / name
        self._begin = time.monotonic()
        recipe, *rest = words
        where = ("--engine", "ray", "--address", "auto", "--out", str(self.out))
        self.process = cluster.begin(
            0, self._log, "train", recipe, *where, "--no-tensorboard", *rest
        )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def rows(self) -> list[dict[str, Any]]:
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def last(self, key: str) -> float:
        rows = self.rows()
        return float(rows[-1].get(key, 0.0)) if rows else 0.0

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait, and say how long it took."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > _LIMIT or self.process.poll() is not None:
                raise SystemExit(f"not so: {what}\n{self.said}")
            time.sleep(0.1)
        _say(f"  {time.monotonic() - begin:5.1f} s until {what}")

    def goes_on(self) -> None:
        """See that it learns."""
        before = self.last("update")
        self.until("five more updates", lambda: self.last("update") >= before + 5)

    def end(self, cluster: _Cluster) -> None:
        """Stop it as Ctrl-C does, and see that nothing of it is left on any host."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60.0)
        _say(f"  {time.monotonic() - begin:5.1f} s until Ctrl-C ended it, exit code {code}")
        begin = time.monotonic()
        actors = ("ray::Host", "ray::RayTrainer", "ray::RayRank")
        while any(cluster.find(host, name) for host in range(3) for name in actors):
            if time.monotonic() - begin > 30.0:
                raise SystemExit("actors are left")
            time.sleep(0.2)
        _say(f"  {time.monotonic() - begin:5.1f} s until all its processes were gone")
        updates = [row["update"] for row in self.rows()]
        if updates != list(range(1, len(updates) + 1)):
            raise SystemExit(f"updates are missing or twice there: {updates}")


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _actor_learner(cluster: _Cluster) -> None:
    _say("actor-learner, trainer on host 1 or 2, its run in a storage")
    shape = """--topology actor-learner --workers 3 --max-workers 5 --worker-cpus 1
    --learner-cpus 0.5 --learner-resource trainer=1 --strategy SPREAD --restarts 2"""
    storage, assignments = str(cluster.folder / "storage"), f"{_SMALL} {_DAGGER}"
    words = (*shape.split(), "--storage", storage, "--set", *assignments.split())
    run = _Run(cluster, "actors", "distrlcc", *words)
    run.until("ten updates", lambda: run.last("update") >= 10)
    trainer = next(host for host in (1, 2) if cluster.find(host, "ray::RayTrainer"))
    other = 3 - trainer
    run.until("all five workers", lambda: run.last("workers") == 5)

    _say(f"raylet of host {other} killed")
    cluster.kill_raylet(other)
    run.until("its workers are gone", lambda: run.last("workers") < 5)
    run.goes_on()
    run.until("it is back and used (it joins again by itself)", lambda: run.last("workers") == 5)

    _say(f"link of host {other} cut")
    cluster.hosts.cut(other)
    run.until("its workers are given up", lambda: run.last("workers") < 5)
    run.goes_on()
    time.sleep(30.0)
    _say(f"link of host {other} mended after 30 s more")
    cluster.hosts.mend(other)
    run.until("it is used again", lambda: run.last("workers") == 5)

    _say(f"raylet of host {trainer}, where the trainer is, killed")
    before = run.last("update")
    cluster.kill_raylet(trainer)
    run.until("that is known", lambda: "starting it again" in run.said)
    run.until("the trainer learns elsewhere", lambda: run.last("update") > before + 5)
    _say(f"  trainer now on host {[h for h in (1, 2) if cluster.find(h, 'ray::RayTrainer')]}")
    run.end(cluster)


def _decentralized(cluster: _Cluster) -> None:
    _say("decentralized, a rank on each host")
    shape = "--processes 3 --learner-cpus 1 --strategy STRICT_SPREAD"
    assignments = f"{_SMALL} {_PPO} distributed.sync_check_every=1"
    words = (*shape.split(), "--set", *assignments.split())
    run = _Run(cluster, "ranks", "quickstart", *words)
    run.until("ten updates of three ranks", lambda: run.last("update") >= 10)
    _say("raylet of host 1 killed")
    cluster.kill_raylet(1)
    run.until("the others go on", lambda: run.last("ranks") == 2)
    run.until("three again, with equal weights", lambda: run.last("ranks") == 3)
    run.goes_on()
    _say("link of host 2 cut")
    cluster.hosts.cut(2)
    run.until("the others go on", lambda: run.last("ranks") == 2)
    run.goes_on()
    time.sleep(30.0)
    _say("link of host 2 mended after 30 s more")
    cluster.hosts.mend(2)
    run.until("three again, with equal weights", lambda: run.last("ranks") == 3)
    run.goes_on()
    run.end(cluster)


def main() -> None:
    """Run all."""
    with tempfile.TemporaryDirectory() as folder, Hosts(3) as hosts:
        cluster = _Cluster(hosts, Path(folder))
        try:
            share = "--cpus 2 --no-dashboard --object-store-mb 80"
            cluster.run(0, "cluster", "start", "--ip", hosts.address(0), *share.split())
            cluster.join(1)
            cluster.join(2)
            _actor_learner(cluster)
            _decentralized(cluster)
        finally:
            for host in (2, 1, 0):
                cluster.run(host, "cluster", "stop", must=False)


if __name__ == "__main__":
    main()
