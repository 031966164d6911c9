"""Three hosts train as DistRLCC does: a trainer and workers, killed, frozen, cut off, resumed."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from distrlcc.policy.policy_file import load_policy
from distrlcc.processes import call_libc
from tests.actors.shared import ENGINES, SMALL, STOP_SECONDS, acting, told, workers
from tests.hosts import rank_processes, wait_until
from tests.parallel.commands import rows, settings, updates

pytestmark = [pytest.mark.net, pytest.mark.timeout(400)]

NOTICE_SECONDS = 30.0
KEYS = (*SMALL.split(), "actors.segments_per_update=4")
NODES = "nodes = [[0, 1], [2, 3], [4, 'random']]\n"


def _start(
    hosts: Any,
    folder: Path,
    *words: str,
    order: Any = (0, 1, 2),
    nodes: str = NODES,
    engine: str = "channel",
) -> dict[int, Any]:
    (folder / "nodes.toml").write_text(nodes)
    master = f"--node-num {nodes.count('[') - 1} --IP {hosts.address(0)} --port 29513 --gpu 0"
    line = (*master.split(), "--nodes", "nodes.toml", "--no-tensorboard", *words, "--set", *KEYS)
    line += (f"actors.engine={engine}",)
    return {host: hosts.start(host, "node", "--node-index", str(host), *line) for host in order}


@ENGINES
def test_three_hosts_lose_workers_stop_and_go_on(
    make_hosts: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "stall=10")
    hosts, out = make_hosts(3), tmp_path / "run"
    # The master comes last: nodes may start in any order.
    processes = _start(hosts, tmp_path, "--out", "run", order=(2, 1, 0), engine=engine)
    wait_until(acting(out, 6), 240, "all workers act")
    links = {worker: row["link"] for worker, row in workers(out).items()}
    assert [links[worker] for worker in range(5)] == [f"indigo/{k}" for k in range(5)]
    assert links[5].startswith("random/train/")
    assert len(rank_processes(processes[0].pid)) == 3  # and the launcher: 2 + 2
    assert len(rank_processes(processes[1].pid)) == 2

    killed, frozen = rank_processes(processes[1].pid)
    os.kill(killed, signal.SIGKILL)
    wait_until(told(out, "gone: worker 2"), NOTICE_SECONDS, "the killed worker is named")
    os.kill(frozen, signal.SIGSTOP)
    wait_until(
        told(out, "gone: worker 3", "has not answered"), NOTICE_SECONDS, "the frozen one is named"
    )
    os.kill(frozen, signal.SIGCONT)
    hosts.cut(2)
    for worker in (4, 5):
        wait_until(told(out, f"gone: worker {worker}"), NOTICE_SECONDS, "the ones cut off")
    hosts.mend(2)
    before = len(rows(out))
    wait_until(lambda: len(rows(out)) > before + 5, 60, "training goes on")
    assert rows(out)[-1]["workers"] == 2.0
    for host in (1, 2):  # given up: they stay away
        assert processes[host].wait(60) == 3
        assert "the trainer has been silent" in hosts.log(processes[host])

    processes[0].send_signal(signal.SIGINT)
    assert processes[0].wait(STOP_SECONDS) == 130
    assert "--load run" in hosts.log(processes[0])
    last = rows(out)[-1]
    assert last["segments_used"] == 4 * last["update"]

    # All of them again, and Ctrl-C at node 0 ends the others too.
    processes = _start(hosts, tmp_path, "--load", "run", engine=engine)
    for key, least in (("update", last["update"] + 1), ("workers", 6.0)):
        wait_until(lambda k=key, n=least: rows(out)[-1][k] >= n, 120, "training goes on")
    found = updates(out)  # the run goes on
    assert found == list(range(1, len(found) + 1))
    children = [pid for p in processes.values() for pid in rank_processes(p.pid)]
    assert len(children) == 7
    for pid in rank_processes(processes[1].pid):  # a whole node that hears nothing
        os.kill(pid, signal.SIGSTOP)
    processes[0].send_signal(signal.SIGTERM)
    assert processes[0].wait(STOP_SECONDS) == 143
    for host in (1, 2):
        assert processes[host].wait(STOP_SECONDS) == 0, hosts.log(processes[host])
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert load_policy(out / "policy.safetensors").spec.kind == "lstm"


@pytest.mark.long
@ENGINES
def test_without_its_trainer_a_run_ends(
    make_hosts: Callable[[int], Any], tmp_path: Path, engine: str
) -> None:
    hosts, out = make_hosts(2), tmp_path / "run"
    nodes = "nodes = [[0], [1, 2]]"
    processes = _start(hosts, tmp_path, "--out", "run", order=(0, 1), nodes=nodes, engine=engine)
    wait_until(acting(out, 3), 120, "all workers act")
    trainer = rank_processes(processes[0].pid)[0]
    os.kill(trainer, signal.SIGKILL)
    for host in (0, 1):
        assert processes[host].wait(60) == 3, hosts.log(processes[host])
    assert "the trainer (process" in hosts.log(processes[0])
    (line,) = [line for line in hosts.log(processes[1]).splitlines() if "error" in line]
    assert line.startswith("distrlcc: error: the master at 10.77.0.1:29513 is gone")


@pytest.mark.long
@ENGINES
def test_a_node_that_does_not_come_or_fit_is_named(
    make_hosts: Callable[[int], Any], tmp_path: Path, engine: str
) -> None:
    hosts, out = make_hosts(3), tmp_path / "run"
    how = {"nodes": "nodes = [[0], [1], [2, 3]]", "engine": engine}
    wait = ("--join-timeout", "15")
    processes = _start(hosts, tmp_path, "--out", "run", *wait, order=(0, 1), **how)
    token, hosts.token = hosts.token, "another-than-that-of-node-0"
    stranger = _start(hosts, tmp_path, *wait, order=(2,), **how)[2]
    assert stranger.wait(60) == 2
    (line,) = hosts.log(stranger).splitlines()
    assert line.startswith("distrlcc: error: the master at 10.77.0.1:29513 has another DISTRLCC_TO")
    hosts.token = token
    wait_until(acting(out, 2), 90, "the others go on")
    assert "waiting at 10.77.0.1:29513 for workers 2, 3, at most 15 s" in hosts.log(processes[0])
    assert "workers 2, 3 did not come within 15 s" in hosts.log(processes[0])
    late = _start(hosts, tmp_path, *wait, order=(2,), **how)[2]
    assert late.wait(60) == 2
    assert "has begun" in hosts.log(late)
    processes[0].send_signal(signal.SIGINT)
    assert processes[0].wait(60) == 130
    assert processes[1].wait(60) == 0


@pytest.fixture
def tunnel(make_hosts: Callable[[int], Any]) -> Iterator[Any]:
    """Two hosts that a VPN connects: 10.88.0.1 and 10.88.0.2."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("needs /dev/net/tun")
    hosts, devices, ended = make_hosts(2), list[int](), threading.Event()

    def attach(host: int) -> None:
        """Make a device on a host, in a thread, which stays there."""
        with open(f"/run/netns/{hosts.names[host]}") as namespace:
            call_libc("setns", namespace.fileno(), 0x40000000)  # CLONE_NEWNET
        devices.append(os.open("/dev/net/tun", os.O_RDWR))
        request = struct.pack("16sH22x", b"vpn0", 0x1001)  # IFF_TUN | IFF_NO_PI
        fcntl.ioctl(devices[host], 0x400454CA, request)  # TUNSETIFF

    def carry() -> None:
        while not ended.is_set():
            for device in select.select(devices, [], [], 0.2)[0]:
                os.write(devices[1 - devices.index(device)], os.read(device, 65536))

    for host in (0, 1):
        with ThreadPoolExecutor() as own:
            own.submit(attach, host).result()
        hosts.inside(host, *f"ip addr add 10.88.0.{host + 1}/24 dev vpn0".split())
        hosts.inside(host, *["ip", "link", "set", "vpn0", "mtu", "1400", "up"])
    with ThreadPoolExecutor() as carrier:
        carrying = carrier.submit(carry)
        yield hosts
        ended.set()
    carrying.result()
    for device in devices:
        os.close(device)


@pytest.mark.long
@ENGINES
def test_over_a_vpn_all_traffic_uses_its_interface(
    tunnel: Any, tmp_path: Path, engine: str
) -> None:
    out = tmp_path / "run"
    nodes = "nodes = [[0], [1]]"
    (tmp_path / "nodes.toml").write_text(nodes)
    line = "--node-num 2 --ip 10.88.0.1 --tun --nodes nodes.toml --no-tensorboard --out run --set"
    words = settings(*line.split(), *KEYS, "total_steps=5000", f"actors.engine={engine}")
    processes = [tunnel.start(host, "node", "--node-index", str(host), *words) for host in (0, 1)]
    for process in processes:
        assert process.wait(120) == 0, tunnel.log(process)
        assert "error" not in tunnel.log(process)
    joined = {event for row in rows(out) for event in row.get("events", []) if "joined" in event}
    assert len(joined) == 2
    addresses = {event.partition(" on ")[2].partition(")")[0] for event in joined}
    assert addresses == {"10.88.0.1", "10.88.0.2"}
    show = tunnel.command(1, "cat", "/proc/net/dev")
    devices = subprocess.run(show, capture_output=True, text=True, check=True, timeout=10.0)
    (received,) = re.findall(r"vpn0: *(\d+)", devices.stdout)
    assert int(received) > 50_000  # bytes
