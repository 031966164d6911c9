"""The kernel's TCP under a policy: loaded and used as users do, killed, kept, swapped, refused."""

import hashlib
import json
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.record_connection import value_of
from distrlcc.cli.main import main
from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.kernel_policy import kernel_policy
from distrlcc.net.kernel import bpf
from distrlcc.net.kernel import tcp as kernel_tcp
from distrlcc.net.kernel.tcp import KernelControl, find_control, loaded_controls, register
from distrlcc.net.kernel.tcp_flow import kernel_controls, send, sink
from distrlcc.policy.kernel_layout import CONNECTION
from distrlcc.policy.quantise import PACING
from tests.hosts import wait_until
from tests.net import kernel_commands
from tests.net.kernel_commands import LOAD, connect, hidden, run_command, system_libbpf

pytestmark = pytest.mark.net
record, name, network = kernel_commands.record, kernel_commands.name, kernel_commands.network

# Any program: it knows nothing of us except the control's name.
UPLOAD = """
    import hashlib, os, socket, sys
    flow = socket.create_connection((os.environ["MAHIMAHI_BASE"], {port}), timeout=20)
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"{name}")
    data = bytes(range(256)) * {blocks}
    flow.sendall(data)
    flow.shutdown(socket.SHUT_WR)
    answer = flow.recv(64)
    used = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()
    print(used, answer == hashlib.sha256(data).hexdigest().encode())
"""
# Half of the connections stay open from beginning to end, half are opened anew again and again.
MANY = """
    import json, os, socket, sys, threading
    counts, errors, over = [0] * {count}, [], threading.Event()
    def work(number):
        flow = None
        try:
            while not over.is_set():
                if flow is None:
                    flow = socket.create_connection((os.environ["MAHIMAHI_BASE"], {port}), 20)
                    try:
                        flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"{name}")
                    except FileNotFoundError:
                        pass  # its holder was killed just now: the kernel's default
                for _ in range(3):
                    flow.sendall(bytes(6000))
                    left = 6000
                    while left:
                        got = flow.recv(left)
                        if not got:
                            raise ConnectionError("closed")
                        left -= len(got)
                    counts[number] += 1
                if number % 2:
                    flow.close()
                    flow = None
        except OSError as error:
            errors.append(f"{{number}}: {{error!r}}")
    threads = [threading.Thread(target=work, args=(n,)) for n in range({count})]
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        print(json.dumps([counts, errors]), flush=True)
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps([counts, errors]), flush=True)
"""

# How many windows per round trip it is paced at, each 10 ms; offsets are those of tcp_info.
PACED = """
    import os, socket, struct, time
    flow = socket.create_connection((os.environ["MAHIMAHI_BASE"], {port}), timeout=20)
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"{name}")
    # What is left at the end is thrown away, and not waited for.
    flow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    flow.setblocking(False)
    for _ in range(100):
        try:
            while flow.send(bytes(1 << 16)):
                pass
        except BlockingIOError:
            time.sleep(0.01)
        info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        mss, rtt, cwnd = (struct.unpack_from("I", info, place)[0] for place in (16, 68, 80))
        print(1e-6 * struct.unpack_from("Q", info, 104)[0] * rtt / (cwnd * mss))
"""


@pytest.fixture
def control(record: kernel_tcp.Record, name: str) -> Iterator[KernelControl]:
    """A policy that this process holds."""
    control = register(record, "one", name)
    yield control
    control.close()


@pytest.fixture
def holder(record: kernel_tcp.Record, name: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """What starts a process that holds a policy, as users do."""
    started: list[subprocess.Popen[str]] = []

    def start(*prefix: str) -> subprocess.Popen[str]:
        words = [*prefix, *LOAD, "load", "one", "--name", name]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stdout = started[-1].stdout
        assert stdout is not None
        assert f"control {name} (" in stdout.readline()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


class Server:
    """Accepts connections, and serves each with a thread."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._socket, self._serve = socket.create_server(("0.0.0.0", 0), backlog=256), serve
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._socket.close()


def _digest(connection: socket.socket) -> None:
    digest = hashlib.sha256()
    while data := connection.recv(1 << 16):
        digest.update(data)
    connection.sendall(digest.hexdigest().encode())


def _echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def _choose(flow: socket.socket, name: str) -> None:
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def _crosses(near: socket.socket, far: socket.socket, count: int = 100_000) -> None:
    """See that bytes still come through."""
    thread = threading.Thread(target=near.sendall, args=(bytes(count),))
    thread.start()
    while count:
        count -= len(far.recv(count))
    thread.join()


def test_a_plain_program_transfers_under_the_policy(holder: Any, name: str, emulator: Any) -> None:
    process = holder()
    with closing(Server(_digest)) as server:
        program = UPLOAD.format(port=server.port, name=name, blocks=8000)
        flags = "--up 12 --down 12 --delay 10 --queue droptail:packets=60"
        code, out, err = emulator.run(flags, command=emulator.python(program))
    assert (code, out) == (0, f"{name} True\n"), err
    # What the kernel did is seen from outside, and said at the end.
    code, out, err = run_command("status", "--json", "-")
    assert (code, err) == (0, "")
    figures = {one["name"]: one for one in json.loads(out)}[name]
    assert figures["policy"] == "one"
    assert figures["held"] == f"held by process {process.pid}"
    assert figures["sockets"] == 1
    assert figures["decisions"] > 80  # 2 MB at 12 Mbit/s, 10 ms each
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out.splitlines()[-1][:12]) == (0, "1 connection")
    assert name not in kernel_controls()


def test_three_capabilities_are_enough_to_load(holder: Any, name: str) -> None:
    rights = "setpriv --inh-caps=-all --bounding-set=-all,+bpf,+net_admin,+perfmon"
    holder(*rights.split()).terminate()
    wait_until(lambda: name not in kernel_controls())


def test_a_holder_that_is_killed_leaves_its_connections_and_nothing_else(
    holder: Any, name: str, network: None
) -> None:
    process = holder()
    near, far = connect()
    with near, far:
        _choose(near, name)
        process.kill()
        process.wait()
        wait_until(lambda: name not in kernel_controls())
        _crosses(near, far)
        used = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert used.rstrip(b"\0").decode() == name
        # It can be had again beside them.
        holder().terminate()
        wait_until(lambda: name not in kernel_controls())
        _crosses(near, far)
    wait_until(lambda: name not in [one.name for one in loaded_controls()])


def test_a_network_keeps_its_default(control: KernelControl, name: str, network: None) -> None:
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    before = default.read_text()
    default.write_text(name)
    control.close()
    assert name not in kernel_controls()
    near, far = connect()
    with near, far:
        used = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert used.rstrip(b"\0").decode() == name
        _crosses(near, far)
    assert before.strip() != name


def test_steps_end_in_time_though_each_window_is_acknowledged_at_once(
    control: KernelControl, name: str, network: None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threading.Thread(target=sink, args=("127.0.0.1", port, 10.0), daemon=True).start()
    (sent,) = send("127.0.0.1", port, name, 0.6)
    # Between two windows nothing is on its way, for microseconds.
    assert control.counts()["decisions"] > 0.7 * sent["seconds"] / 0.01


@pytest.mark.parametrize("policy", ["one", "aurora"])
@pytest.mark.parametrize("always", [False, True])
def test_a_short_path_is_left_to_cubics_rule_and_status_says_so(
    name: str, network: None, capsys: pytest.CaptureFixture[str], policy: str, always: bool
) -> None:
    contender = replace(contender_from_file(policy), always=always)
    with closing(register(kernel_policy(contender), policy, name)) as control:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        threading.Thread(target=sink, args=("127.0.0.1", port, 10.0), daemon=True).start()
        send("127.0.0.1", port, name, 0.5)
        wait_until(lambda: control.counts()["released"] > 0)
        assert main(["kernel", "status", "--json", "-"]) == 0
        figures = {one["name"]: one for one in json.loads(capsys.readouterr().out)}[name]
        assert main(["kernel", "status", "--prometheus"]) == 0
        marks = f'{{name="{name}",policy="{policy}"}}'
        sums = f"distrlcc_kernel_sockets_total{marks} {figures['sockets']:.1f}\n"
        assert sums in capsys.readouterr().out
        assert main(["kernel", "status"]) == 0
    said = re.search(rf"{name}: .*?outside ([^\n]*)", capsys.readouterr().out, re.DOTALL)
    assert said is not None
    assert figures["always"] == always
    if always:
        assert (figures["outside_s"], figures["short_entries"]) == (0.0, 0)
        assert "no path is (--always)" in said[1]
    else:
        assert figures["outside_s"] > 0.1
        assert figures["short_entries"] >= 1
        assert f"RTT under 2 ms {figures['short_entries']} times" in said[1]


def test_who_never_fills_the_window_is_limited_by_the_application(
    control: KernelControl, name: str, network: None
) -> None:
    near, far = connect()
    _choose(near, name)
    with near, far:
        for _ in range(20):
            _crosses(near, far, 20_000)
            time.sleep(0.004)
        found = []
        for fd in bpf.maps_named("connections"):
            with suppress(FileNotFoundError):  # another test's
                found.append(np.frombuffer(value_of(fd, near.fileno()), CONNECTION)[0])
    assert [int(record["limited"]) for record in found] == [1]


@pytest.mark.parametrize(("policy", "gain"), [("one", 1.5), ("dagger", PACING)])
def test_a_connection_is_paced_at_its_policys_gain(
    record: Any, name: str, emulator: Any, policy: str, gain: float
) -> None:
    whole = kernel_policy(contender_from_file(policy))
    with closing(register(whole, policy, name)), closing(Server(_digest)) as server:
        code = PACED.format(port=server.port, name=name)
        flags = "--up 12 --down 12 --delay 10 --queue droptail:packets=60"
        code, out, err = emulator.run(flags, command=emulator.python(code))
    assert (code, err) == (0, "")
    # A few of them are of a connection that repairs losses, with a window of its own.
    gains = [float(line) for line in out.split()]
    assert statistics.median(gains[20:]) == pytest.approx(gain, rel=0.01)


@pytest.mark.parametrize(
    "hides",
    [pytest.param(False, id="libbpf"), pytest.param(True, id="pylibbpf", marks=pytest.mark.long)],
)
def test_one_that_is_kept_stays_until_it_is_unloaded(record: Any, name: str, hides: bool) -> None:
    if hides and not bpf.bundled():
        pytest.skip("needs pylibbpf")
    load = shlex.join(LOAD)
    lines = (
        "mount -t bpf bpf /sys/fs/bpf",
        f"{load} load one --keep --name {name}",
        f"{load} status",
        f"{load} load dagger --swap --name {name}",
        f"{load} unload --name {name}",
    )
    words = [*hidden(*(system_libbpf() if hides else ())), "sh", "-c", " && ".join(lines)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{name}: one, kept, /sys/fs/bpf/distrlcc/{name}\n" in done.stdout
    assert f"{name} runs dagger now, in place of one\n{name} is gone; " in done.stdout


@pytest.mark.parametrize("swaps", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_connections_live_while_weights_are_swapped_and_holders_die(
    record: Any, holder: Any, name: str, emulator: Any, swaps: int
) -> None:
    other = kernel_policy(contender_from_file("dagger"))
    process = holder()
    with closing(Server(_echo)) as server:
        code = MANY.format(count=64, port=server.port, name=name)
        many = emulator.start("--up 24 --down 24 --delay 5", command=emulator.python(code))

        def counts() -> list[int]:
            many.stdin.write("\n")
            many.stdin.flush()
            counts, errors = json.loads(many.stdout.readline())
            assert errors == []
            return list(counts)

        # All connections move bytes, before, while and after their holder dies.
        wait_until(lambda: min(counts()) > 0)
        found = find_control(name)
        for swap in range(swaps):
            if swap == swaps // 2:
                process.kill()
                process.wait()
                process = holder()
                found = find_control(name)
            found.swap(other if swap % 2 else record, f"swap {swap}")
        before = counts()
        wait_until(lambda: all(a > b for a, b in zip(counts(), before, strict=True)))
        assert found.counts()["decisions"] > 0
        out, err = many.communicate(timeout=30)
        assert json.loads(out)[1] == [], err


LINK = """
name = "short"
duration_s = 2.5
link = { rate_mbps = 12.032, delay_ms = 10.0, queue_packets = 60 }
flows = [{ scheme = "agent" }]
"""


@pytest.mark.long
def test_a_policy_is_ranked_in_the_kernel_and_outside(
    record: Any, emulator: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short.toml").write_text(LINK)
    monkeypatch.setattr("distrlcc.evaluation.both_worlds.SECONDS", 3.0)
    words = ["evaluate", "one", "--world", "emulated", "--as", "kernel", "--against", "none"]
    words += ["--suite", str(tmp_path / "short.toml"), "--out", str(tmp_path / "report")]
    words += ["--flows", "3"]
    code, said = main([*words, "--json", str(tmp_path / "figures.json")]), capsys.readouterr()
    void = "run void" in said.out + said.err  # the sender of ours was late, and does not count
    assert code == void
    own = f"rl{os.getpid()}_"  # other tests may have theirs
    assert [control for control in kernel_controls() if control.startswith(own)] == []
    figures = json.loads((tmp_path / "figures.json").read_text())
    schemes, (together,) = figures["schemes"], figures["flows"]
    assert {name: one["learned"] for name, one in schemes.items()} == {
        "one": True,
        "kernel-one": True,
    }
    assert 0.0 < schemes["kernel-one"]["overall"]["guarded"]["mean"] < 0.9
    # Three flows at once share what the link carries.
    assert (together["sender"], together["flows"]) == ("kernel-one", 3)
    for world in ("emulated", "simulated"):
        did = together[world]
        assert 3.0 < did["mbps"] < 96.1
        assert did["mean_rtt_ms"] >= 20.0
        assert did["lost"] < 0.2
        assert 0.34 < did["jain"] <= 1.0
    assert "3 flows of kernel-one: " in (tmp_path / "report" / "report.html").read_text()
    page = (tmp_path / "report" / "sim-to-real.html").read_text()
    assert re.search(r'<th scope="row">3</th><td[^>]*>kernel-one</td>', page)
    assert re.search(r"kernel-one is one in this machine.{,9}s kernel: \d{3,} decisions", page)
    for line in said.out.splitlines():
        if line.startswith("short, kernel-one: "):  # in both worlds
            assert " nan" not in line
            assert re.search(r"simulated \d+\.\d\d \(", line)
            break
    else:
        pytest.fail("no comparison with the simulator")
