"""Three hosts make a Ray cluster: refused, joined, examined, cut off, ended."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import distrlcc
from distrlcc.cluster import session, state
from distrlcc.cluster.cluster import addresses, head_interface, health, start_head, stop
from distrlcc.cluster.session import node_identity, parse_address, read_row
from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.admission import checked_token
from distrlcc.parallel.interface import Interface, interfaces
from distrlcc.processes import Process, descendants, find_process
from distrlcc.runs.identity import differences
from distrlcc.tune.report import read_reports
from tests.hosts import Hosts, listening, wait_until

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef0123456789abcdef"
STALL_SECONDS = 8.0
MEMBER = state.Node(
    "10.0.0.2", "10.0.0.1", 6379, "eth0", ["ray"], Process(1, 2), "now", Process(3, 4)
)
SMALL = ("--cpus", "1", "--object-store-mb", "100")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own state out of the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DISTRLCC_TOKEN", raising=False)


def test_every_port_is_named_and_none_twice() -> None:
    assert state.name_ports(6379) == "6379-6385 and 10002-10999"
    ports = state.port_settings(6379, head=True)
    assert list(ports.values()) == list(range(6379, 6386))
    assert list(state.port_settings(6379, head=False).values()) == list(range(6380, 6385))
    state.check_ports(23_400, head=True)
    with (
        socket.create_server(("127.0.0.1", 23_402)),
        pytest.raises(GroupError, match=r"port 23402 \(objects\) in use"),
    ):
        state.check_ports(23_400, head=True)


@pytest.mark.parametrize("stall", [20.0, 8.0])
def test_ray_gives_up_a_machine_after_the_limit(
    stall: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", f"stall={stall}")
    values = {name.removeprefix("RAY_"): float(value) for name, value in health().items()}
    period, timeout = (values[f"health_check_{name}_ms"] for name in ("period", "timeout"))
    assert (period + timeout) / 1e3 * values["health_check_failure_threshold"] == stall


def test_tokens_are_kept_private_and_are_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.kept_token() == ""
    state.keep_token(TOKEN)
    assert stat.S_IMODE(state.token_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(state.token_path().parent.stat().st_mode) == 0o700
    assert state.kept_token() == TOKEN
    monkeypatch.setenv("DISTRLCC_TOKEN", "from the environment")
    assert (state.kept_token(), state.known_token()) == (TOKEN, "from the environment")
    with pytest.raises(ConfigError, match="has 5 characters; expected 16"):
        checked_token("short")
    with pytest.raises(ConfigError, match="without spaces"):
        checked_token("two words and a line")
    assert checked_token(TOKEN) == TOKEN


def test_processes_are_told_apart_by_their_start() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        found = find_process(child.pid)
        assert found is not None
        assert found.alive()
        assert not Process(child.pid, found.started + 1).alive()
        assert found in descendants(os.getpid())
        Process(child.pid, found.started + 1).signal(signal.SIGKILL)  # of another's number
        assert found.alive()
        found.signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait(5)
    assert not found.alive()
    found.signal(signal.SIGKILL)
    assert find_process(child.pid) is None


def test_addresses_have_a_port_and_are_this_machines() -> None:
    assert parse_address("10.0.0.1:7000") == ("10.0.0.1", 7000)
    assert parse_address("head") == ("head", 6379)
    for text in ("", ":6379", "host:", "host:x", "host:0", "a:b:1", "host:70000"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            parse_address(text)
    with pytest.raises(ConfigError, match="expected an address of this machine"):
        head_interface("203.0.113.9", "")


@pytest.mark.parametrize("public", ["8.8.8.8", "2001:4860:4860::8888"])
def test_a_public_address_is_refused_on_any_interface(
    public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    ours = [Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.1")]
    at = "distrlcc.cluster.cluster"
    monkeypatch.setattr(f"{at}.interfaces", lambda: ours)
    monkeypatch.setattr(f"{at}.addresses", lambda: [*ours, Interface("eth1", public)])
    # A port that is taken shows who would have started.
    with socket.create_server(("127.0.0.1", 23_420)):
        with pytest.raises(ConfigError, match="close ports 23420-23426 and ") as caught:
            start_head("10.0.0.1", 23_420)
        assert f"eth1 ({public})" in str(caught.value)
        for ip, allow in (("10.0.0.1", True), ("127.0.0.1", False)):
            with pytest.raises(GroupError, match="port 23420"):
                start_head(ip, 23_420, allow_public=allow)


def test_addresses_of_ipv6_are_found_too() -> None:
    found = addresses()
    assert set(interfaces()) <= set(found)
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        assert Interface("lo", "::1") in found


def test_several_addresses_of_an_interface_are_found(tmp_path: Path) -> None:
    with Hosts(1, tmp_path) as made:
        add = made.command(0, "ip", "addr", "add", "8.8.8.8/32", "dev", "lo")
        subprocess.run(add, check=True)
        script = "from distrlcc.cluster.cluster import addresses; print(addresses())"
        words = made.command(0, sys.executable, "-c", script)
        assert "8.8.8.8" in subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_another_program_is_not_taken_for_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(GroupError, match="no Ray cluster answers") as caught:
            read_row(f"127.0.0.1:{silent.getsockname()[1]}", TOKEN)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("row", [b"[1", b"7", b'{"config": 7}', b"[" * 50_000, b'{"\xff": ""}'])
def test_a_heads_row_that_is_none_is_one_error(row: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ask_store", lambda *_: row)
    with pytest.raises(GroupError, match="said something else than expected") as caught:
        read_row("10.0.0.1:6379", TOKEN)
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 1


def test_a_heads_row_has_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps(node_identity() | {"config": "no TOML", "more": "x"}).encode()
    monkeypatch.setattr(session, "ask_store", lambda *_: row)
    table = differences(read_row("10.0.0.1:6379", TOKEN), node_identity())
    assert [line.split() for line in table.splitlines()[1:]] == [["more", "x", "(absent)"]]


def test_the_cluster_file_is_what_ray_up_reads() -> None:
    ray = pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    import jsonschema
    import yaml
    from ray.autoscaler._private.local.config import prepare_local

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    config = yaml.safe_load((ROOT / "examples" / "ray-cluster.yaml").read_text())
    jsonschema.validate(config, schema)
    prepared, _ = prepare_local(config)
    (kind,) = prepared["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == len(config["provider"]["worker_ips"])
    assert f"--listen {config['provider']['head_ip']}" in config["head_start_ray_commands"][1]


class Cluster:
    """Hosts and what their commands said."""

    def __init__(self, hosts: Any, folder: Path) -> None:
        self.hosts, self.head, self.token = hosts, f"{hosts.address(0)}:6379", ""
        self.folder = folder
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self._environment["DISTRLCC_LIMITS"] = f"stall={STALL_SECONDS},start=150"
        self._environment.pop("DISTRLCC_TOKEN", None)

    def run(self, host: int, *words: str, code: int | None = 0, **environment: str) -> str:
        """Run a command that exits with a code, None for any; return its output."""
        # "-s" starts a process cold, which other sources need.
        cold = ("-s",) if "PYTHONPATH" in environment else ()
        command = self.hosts.command(host, sys.executable, *cold, "-m", "distrlcc", *words)
        done = subprocess.run(
            command,
            env={**self._environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        said = done.stdout + done.stderr
        assert code in (None, done.returncode), said
        return said


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Cluster]:
    """Return hosts of which the first runs a cluster's head."""
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    folder = tmp_path_factory.mktemp("cluster")
    with Hosts(2, folder) as hosts:
        made = Cluster(hosts, folder)
        try:
            said = made.run(0, "cluster", "start", "--no-dashboard", "--show-token", *SMALL)
            line = next(line.strip() for line in said.splitlines() if "cluster join" in line)
            secret, *words = line.split()
            assert words == ["distrlcc", "cluster", "join", made.head]
            made.token = secret.removeprefix("DISTRLCC_TOKEN=")
            yield made
        finally:
            for host in (1, 0):
                made.run(host, "cluster", "stop", code=None)


@pytest.mark.net
def test_who_does_not_fit_is_refused_at_once(cluster: Cluster, tmp_path: Path) -> None:
    run, token = cluster.run, {"DISTRLCC_TOKEN": cluster.token}
    assert len(cluster.token) == 64
    assert "a cluster's head already" in run(0, "cluster", "start", *SMALL, code=2)
    join, doctor = ("cluster", "join", cluster.head), ("doctor", "--address", cluster.head)
    train = ("train", "quickstart", "--engine", "ray", "--address", cluster.head, "--out", "none")
    for words in (join, train):
        said = run(1, *words, DISTRLCC_TOKEN=TOKEN, code=2)
        assert "has another token" in said
        assert "Traceback" not in said
    assert not (cluster.folder / "none").exists()
    assert "the token of the cluster is needed" in run(1, *join, code=2)
    assert "another token" in run(1, *doctor, code=1, DISTRLCC_TOKEN=TOKEN)
    said = run(1, *doctor, code=None, **token)
    assert "knows the token" in said
    assert "as on 10.77.0.1" in said

    other = tmp_path / "other"
    shutil.copytree(Path(distrlcc.__file__).parent, other / "distrlcc")
    (other / "distrlcc" / "extra.py").write_text("# not in the head's sources\n")
    package = other / "torch-1.2.3.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    said = run(1, *join, **token, PYTHONPATH=str(other), code=2)
    rows = [line.split() for line in said.splitlines()]
    assert [row[0] for row in rows[2:]] == ["code", "torch"], said
    assert rows[-1][-1] == "1.2.3"
    assert cluster.hosts.processes(1) == []


@pytest.mark.net
def test_a_host_joins_and_all_are_examined(cluster: Cluster, tmp_path: Path) -> None:
    _join(cluster, "--resource", "actor=4")
    nodes = json.loads(cluster.run(1, "cluster", "status", "--json", "-"))["nodes"]
    assert [(node["address"], node["alive"], node["is_head"]) for node in nodes] == [
        (cluster.hosts.address(0), True, True),
        (cluster.hosts.address(1), True, False),
    ]
    assert nodes[1]["resources"] == {"actor": 4.0}

    storage = tmp_path / "storage"
    storage.mkdir()
    said = cluster.run(0, "doctor", "--cluster", "--storage", str(storage), "--json", "-")
    told = json.loads(said[said.index("{\n") : said.rindex("}") + 1])
    found = {(row["check"], row["machine"]): row["found"] for row in told["rows"]}
    for host in (0, 1):
        address = cluster.hosts.address(host)
        assert "eth0" in found["interface", address]
        assert "8 MB from" in found["object", address]
        assert "writable" in found["storage", address]
        assert "reaches 63" in found["ports", address]
    assert "bit/s" in found["link", cluster.hosts.address(0)]
    assert "ms from" in found["clock", cluster.hosts.address(1)]
    assert list(storage.iterdir()) == []

    # Ray listens where it was told, but for what it opens to all unless it runs on loopback alone:
    # its control store, node manager, objects, the agent's gRPC, and all workers; no metrics.
    for host, wide in ((0, {6379, 6380, 6381, 6383}), (1, {6380, 6381, 6383})):
        at = listening(cluster.hosts.processes(host))
        open_to_all = {port for where, port in at if where == "0.0.0.0"}
        assert {port for port in open_to_all if not 10_002 <= port <= 10_999} == wide
        assert {where for where, _ in at} <= {cluster.hosts.address(host), "127.0.0.1", "0.0.0.0"}


def _join(cluster: Cluster, *more: str) -> None:
    """Let the second host join, unless it has."""
    words = ("cluster", "join", cluster.head, *SMALL, "--rejoin", *more)
    if not cluster.hosts.processes(1):
        cluster.run(1, *words, DISTRLCC_TOKEN=cluster.token)


@pytest.mark.net
@pytest.mark.long
def test_a_head_on_loopback_listens_there_alone(make_hosts: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray (extra 'ray')")
    cluster = Cluster(make_hosts(1), tmp_path)
    cluster.run(0, "cluster", "start", "--no-dashboard", "--listen", "127.0.0.1", *SMALL)
    try:
        at = listening(cluster.hosts.processes(0))
        assert len(at) >= 7
        assert {where for where, _ in at} == {"127.0.0.1"}
        (node,) = json.loads(cluster.run(0, "cluster", "status", "--json", "-"))["nodes"]
        assert (node["address"], node["alive"]) == ("127.0.0.1", True)
    finally:
        cluster.run(0, "cluster", "stop")
    assert cluster.hosts.processes(0) == []


@pytest.mark.net
@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_population_trains_on_all_hosts(cluster: Cluster, tmp_path: Path) -> None:
    _join(cluster)
    words = shlex.split(
        f"tune pbt quickstart --address {cluster.head} --population 2 --interval 2 --updates 6 "
        f"--quantile 0.5 --synch --storage {tmp_path / 'storage'} --out {tmp_path / 'tuned'} "
        "--mutate ppo.lr=loguniform:1e-5:1e-2 ppo.clip_param=uniform:0.1:0.2 "
        "--set num_envs=8 ppo.rollout_length=16 ppo.minibatch_size=64 held_out.links=2 "
        "held_out.seconds=0.5"
    )
    busy: set[int] = set()
    with ThreadPoolExecutor() as pool:
        trained = pool.submit(cluster.run, 0, *words)
        while not trained.done():
            time.sleep(0.05)  # a segment is short
            for host in {0, 1} - busy:
                for pid in cluster.hosts.processes(host):
                    with suppress(OSError):
                        title = Path(f"/proc/{pid}/cmdline").read_bytes()
                        if title.startswith(b"ray::") and b"IDLE" not in title:
                            busy.add(host)
        trained.result()
    assert busy == {0, 1}
    reports = read_reports(tmp_path / "tuned" / "reports.jsonl")
    assert {(report.member, report.update) for report in reports} == {
        (member, update) for member in (0, 1) for update in (2, 4, 6)
    }
    assert any(len(report.schedule) > 1 for report in reports)


@pytest.mark.net
@pytest.mark.long
def test_a_cut_machine_is_given_up_joins_again_and_leaves_nothing(cluster: Cluster) -> None:
    _join(cluster)
    cluster.hosts.cut(1)
    begin = time.monotonic()

    def alive() -> list[bool]:
        said = cluster.run(0, "cluster", "status", "--json", "-")
        return [node["alive"] for node in json.loads(said)["nodes"]]

    wait_until(
        lambda: alive() == [True, False],
        2 * STALL_SECONDS + 15.0,
        "the machine that was cut is given up",
    )
    assert time.monotonic() - begin > STALL_SECONDS / 2
    wait_until(
        lambda: "waits to join" in cluster.run(1, "cluster", "status", code=None),
        80.0,  # Ray takes its time where the machine is busy
        "it ended its part",
    )
    assert len(cluster.hosts.processes(1)) == 1  # which joins again
    cluster.hosts.mend(1)
    wait_until(lambda: alive() == [True, True], 120.0, "it is back")
    cluster.run(1, "cluster", "stop")
    cluster.run(0, "cluster", "stop")
    for host in (0, 1):
        assert cluster.hosts.processes(host) == []
        assert "nothing to stop" in cluster.run(host, "cluster", "stop", code=2)


def test_what_was_killed_can_be_cleaned_up() -> None:
    with pytest.raises(GroupError, match="nothing to stop"):
        stop()
    mark = {**os.environ, state.MARK: str(state.state_folder())}
    left, other = subprocess.Popen(["sleep", "60"], env=mark), subprocess.Popen(["sleep", "60"])
    try:
        state.write_state(MEMBER)
        assert state.read_state() == MEMBER
        with pytest.raises(GroupError, match="to go on: distrlcc cluster join"):
            state.node_here()
        assert stop() == MEMBER
        assert left.wait(5) < 0
        assert other.poll() is None
    finally:
        for each in (left, other):
            each.kill()
            each.wait(5)
