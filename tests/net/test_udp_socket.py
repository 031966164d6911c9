"""Datagrams in batches over real sockets."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns

import pytest

from distrlcc.errors import LinkError
from distrlcc.net.emulator.namespace import is_privileged
from distrlcc.net.flow_record import Ticker
from distrlcc.net.udp_socket import UdpSocket, resolve


def _all(receiver: UdpSocket, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = monotonic_ns() + 5_000_000_000
    while len(found) < count and monotonic_ns() < deadline:
        receiver.wait(deadline)
        found += [data for data, _ in receiver.receive()]
    return found


@pytest.mark.parametrize("batches", [True, False])
def test_boundaries_and_order_are_kept(batches: bool) -> None:
    with (
        UdpSocket(bind=("127.0.0.1", 0)) as receiver,
        UdpSocket(connect=receiver.address) as sender,
    ):
        sender.batches = sender.batches and batches
        sizes = [1472] * 70 + [100, 1472, 1472, 3, 3, 1] + [1000] * 5
        datagrams = [bytes([k % 251]) * size for k, size in enumerate(sizes)]
        sender.send(datagrams)
        assert _all(receiver, len(datagrams)) == datagrams
        assert sender.unsent == 0


def test_who_does_not_listen_is_noticed() -> None:
    with UdpSocket(bind=("127.0.0.1", 0)) as server:
        address = server.address
    with UdpSocket(connect=address) as client:
        deadline = time.monotonic() + 5.0
        while not client.refused and time.monotonic() < deadline:
            client.send([b"x"])
            client.wait(monotonic_ns() + 10_000_000)
            client.receive()
        assert client.refused


def test_a_port_that_is_taken_is_one_line() -> None:
    with (
        UdpSocket(bind=("127.0.0.1", 0)) as server,
        pytest.raises(LinkError, match=r"cannot listen on 127.0.0.1:.* in use"),
    ):
        UdpSocket(bind=server.address)
    with pytest.raises(LinkError, match=r"cannot listen on 203.0.113.7:0"):
        UdpSocket(bind=("203.0.113.7", 0))


def test_a_process_without_room_for_sockets_gets_one_line() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/dev/fd"))) + 1
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

        def take_all() -> None:
            for _ in range(most + 1):
                opened.enter_context(UdpSocket())

        with pytest.raises(LinkError, match=r"cannot open a UDP socket .* ulimit -n"):
            take_all()


@pytest.mark.parametrize(
    "text", ["", "host:", ":1", "1.2.3.4:x", "1.2.3.4:70000", "1.2.3.4:\u00b23", "::1", "[::1"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(LinkError, match="expected HOST:PORT"):
        resolve(text, "receiver")


def test_addresses() -> None:
    assert resolve("127.0.0.1:5", "receiver") == ("127.0.0.1", 5)
    assert resolve("127.0.0.1", "receiver", 4730) == ("127.0.0.1", 4730)
    assert resolve("[::1]", "receiver", 4730)[:2] == ("::1", 4730)
    assert resolve("[::1]:7", "receiver")[:2] == ("::1", 7)
    with pytest.raises(LinkError, match=r"no.such.host.invalid is unknown"):
        resolve("no.such.host.invalid:5", "receiver")


_NO_ANSWER = """
import os, socket, sys
from distrlcc.cli.main import main
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
    silent.bind(("127.0.0.1", 53))  # what looks names up, and never answers
    code = main(sys.argv[1:])
os._exit(code)
"""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("send no.such.host --timeout 1", "no server of names has answered for 1 s"),
        ("receive --listen no.such.host:0", "no server of names has answered for 2 s"),
        ("node --ip no.such.host --node-index 0 --node-num 2 quickstart --out x", "for 2 s"),
        ("cluster join no.such.host:6379", "for 2 s"),
        ("doctor --address no.such.host:6379", "for 2 s"),
    ],
)
def test_a_name_is_looked_up_within_the_limit(command: str, says: str, tmp_path: Path) -> None:
    """The system's own resolver would ask for ten seconds or more."""
    if not is_privileged() or shutil.which("unshare") is None:
        pytest.skip("needs root: a resolver of its own")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    binds = [f"mount --bind {tmp_path}/{name} /etc/{name}" for name in ("resolv.conf", "hosts")]
    script = " && ".join([*binds, "ip link set lo up", 'exec "$@"'])
    shell = ("unshare", "--mount", "--net", "sh", "-c", script, "sh")
    ran = subprocess.run(
        [*shell, sys.executable, "-c", _NO_ANSWER, *command.split()],
        env=os.environ | {"DISTRLCC_LIMITS": "call=2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,  # less than its 150
        check=False,
    )
    assert says in ran.stdout + ran.stderr
    assert ran.returncode in (1, 2)


def test_steps_are_counted_as_they_came() -> None:
    ticker = Ticker(now=0, step=10)
    ticker.tick(now=10, step=10_000_000)
    assert ticker.due == 10_000_010
    ticker.tick(now=ticker.due + 1_500_000, step=10_000_000)  # late
    assert ticker.due == 20_000_010
    ticker.tick(now=ticker.due + 25_000_000, step=10_000_000)  # two more have passed
    assert ticker.due == 50_000_010
    assert (ticker.count, ticker.missed) == (3, 2)
    assert ticker.late_share() == 4 / 5
    assert ticker.percentile_ms(50.0) == pytest.approx(1.5, rel=0.01)
    assert Ticker(now=0, step=5).late_share() == 0.0
