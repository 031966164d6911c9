"""A Ray of a process's own: where it listens, and what is left of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distrlcc.cluster.session import AUTO, ray_session
from distrlcc.errors import NoGroupError
from distrlcc.processes import descendants, marked
from tests.hosts import listening, wait_until
from tests.parallel.commands import Command, updates

pytest.importorskip("ray", reason="needs Ray (extra 'ray')")

CODE = """
import json, os, signal, sys, time
from distrlcc.cluster.session import ray_session, require_ray
require_ray()
before = dict(os.environ)
with ray_session(cpus=1):
    during = dict(os.environ)
    plain = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
after = dict(os.environ)
print(json.dumps([after == before, during["RAY_AUTH_MODE"], plain]), flush=True)
with ray_session(cpus=1) as ray:
    @ray.remote
    class Actor:
        def address(self):
            return ray.util.get_node_ip_address()
    actor = Actor.remote()
    print(ray.get(actor.address.remote()), flush=True)
    time.sleep(300)
"""


def test_a_ray_of_ones_own_is_on_loopback_and_leaves_nothing(tmp_path: Path) -> None:
    name, value = "DISTRLCC_TEST_MARK", tmp_path.name
    (home := tmp_path / "home").mkdir()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    own = {name: value, "SPT_NOENV": "1", "RAY_ADDRESS": "192.0.2.99:1"}
    own |= {"HOME": str(home), "XDG_CACHE_HOME": cache}
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", CODE],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            # After a session the environment is as before; Ray leaves signals to us.
            assert json.loads(process.stdout.readline()) == [True, "token", True], log.read_text()
            assert process.stdout.readline() == "127.0.0.1\n", log.read_text()
            pids: list[int] = []

            def all_listen() -> bool:
                pids[:] = [each.pid for each in marked(f"{name}={value}")]
                titles = [Path(f"/proc/{pid}/cmdline") for pid in pids]
                agents = [t for t in titles if t.exists() and b"DashboardAgent" in t.read_bytes()]
                # An eighth is the agent's, 52365 for every Ray: another here may have it.
                return bool(agents) and len(listening(pids)) >= 7

            wait_until(all_listen, 200.0, "that all parts of Ray listen")
            # A signal to its own group, as of `timeout`, does not reach Ray.
            groups = {pid: os.getpgid(pid) for pid in pids if pid != process.pid}
            assert process.pid not in groups.values()
            assert {where for where, _ in listening(pids)} == {"127.0.0.1"}
            # No token of its stays, which a later `ray start` of the user's would take.
            assert not (home / ".ray").exists()
        finally:
            process.kill()
    wait_until(lambda: not marked(f"{name}={value}"), 20.0, "the end of all its processes")


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "TMPDIR"])
def test_the_cluster_of_this_machine_is_found_in_rays_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1\n")
    with pytest.raises(NoGroupError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "):
        ray_session(AUTO).__enter__()


@pytest.mark.long
@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_a_run_ends_with_its_ray(part: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train = shlex.split("-m distrlcc train quickstart --engine ray --no-tensorboard --out")
    endless = shlex.split("--set num_envs=4 ppo.rollout_length=16 max_seconds=1e9")
    command = Command(tmp_path, *train, str(out), *endless)
    try:
        wait_until(lambda: len(updates(out)) > 1, 180.0, "two updates")
        processes = descendants(command.process.pid)
        names = {Path(f"/proc/{each.pid}/comm").read_text().strip(): each for each in processes}
        os.kill(names[part].pid, signal.SIGKILL)
        # It ends long before Ray's own limit of a minute.
        assert command.process.wait(30.0) == 3
        told = [line for line in command.said if line.startswith("distrlcc: error: ")]
        assert len(told) == 1
        assert f"Ray is gone: its {part} on this machine died; go on from" in told[0]
        wait_until(lambda: not any(each.alive() for each in processes), 20.0, "the end of all")
    finally:
        command.process.kill()
