"""The tunnel alone: real processes on loopback addresses that stand for machines."""

from __future__ import annotations

import os
import resource
import signal
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distrlcc.errors import GroupError
from distrlcc.parallel.gate import Gate, Tunnel
from distrlcc.parallel.interface import listen
from distrlcc.processes import descendants
from tests.hosts import wait_until
from tests.parallel import strangers

TOKEN = "0123456789abcdef"


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


@pytest.fixture
def machines() -> Iterator[Any]:
    """Return two machines' gates and gateways; on the second there is an echo service."""
    with ExitStack() as stack:
        server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        port = int(server.server_address[1])
        tunnels = [
            Tunnel(listen(f"127.0.0.{host}", 0), TOKEN, {"echo": port} if host == 3 else {})
            for host in (2, 3)
        ]
        for tunnel in tunnels:
            stack.callback(tunnel.close)
        gates = [stack.enter_context(Gate(tunnel.name)) for tunnel in tunnels]
        there, process = tunnels[1].port, tunnels[1]._process.pid
        where = f"127.0.0.3:{there}"
        yield SimpleNamespace(gates=gates, there=where, port=there, echo=port, process=process)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10.0)


def _echoes(port: int, data: bytes) -> bool:
    """Say whether all comes back; a tunnel may refuse before or after it has read some."""

    def send() -> None:
        with suppress(ConnectionError):
            client.sendall(data)

    with _connect(port) as client:
        thread = threading.Thread(target=send)
        thread.start()
        found = b""
        with suppress(ConnectionError), client.makefile("rb") as file:
            found = file.read(len(data))
        thread.join(10.0)
    return found == data


def test_bytes_go_there_and_back_whatever_their_number(machines: Any) -> None:
    port = machines.gates[0].way(machines.there, "echo")
    assert port == machines.gates[0].way(machines.there, "echo") != machines.echo
    for size in (1, 100_000, 20_000_000):
        assert _echoes(port, os.urandom(size))
    assert machines.gates[1].way(machines.there, "echo") == machines.echo  # on its own machine


def test_only_a_port_that_a_living_member_registered_is_reached(machines: Any) -> None:
    here, there = machines.gates
    port = here.way(machines.there, machines.echo)
    with _connect(port) as refused:
        assert refused.recv(1) == b""
    assert there.register(machines.echo) == machines.there
    assert _echoes(port, b"registered")
    with _connect(port) as held:
        held.sendall(b"x")
        assert held.recv(1) == b"x"
        there.close()  # as when its process ends
        wait_until(lambda: not _echoes(port, b"x"), 20.0, "it is not reached any more")
        held.sendall(b"goes on")
        assert held.recv(7) == b"goes on"
    with pytest.raises(ConnectionRefusedError):
        here.way(machines.there, "another service")


def test_another_token_and_another_server_are_one_line(machines: Any) -> None:
    tunnel = Tunnel(listen("127.0.0.4", 0), TOKEN + "0", {})
    try:
        with Gate(tunnel.name) as gate:
            with pytest.raises(GroupError, match=r"has another DISTRLCC_TOKEN") as caught:
                gate.way(machines.there, "echo")
            assert caught.value.exit_code == 2
            with pytest.raises(GroupError, match=r"is not a distrlcc master") as caught:
                gate.way(f"127.0.0.1:{machines.echo}", "echo")
            assert caught.value.exit_code == 2
            with pytest.raises(ConnectionRefusedError):
                gate.way("127.0.0.1:1", "echo")
    finally:
        tunnel.close()


# A machine alone may have 32 connections that have proved nothing, and all together 256.
@pytest.mark.parametrize(("sources", "most"), [(range(1, 2), 32), (range(1, 31), 256)])
def test_who_does_not_know_the_token_holds_nothing_up(
    machines: Any, sources: range, most: int
) -> None:
    own, over, counts = _sockets(machines.process), threading.Event(), list[int]()
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        held = [stack.enter_context(each) for each in strangers.send("127.0.0.3", machines.port)]

        def flood() -> None:
            """Connect without end, where there are many sources also from a member's address."""
            for source in cycle(sources):
                if over.is_set():
                    break
                came = socket.create_connection(
                    ("127.0.0.3", machines.port), 10.0, (f"127.0.0.{source}", 0)
                )
                held.append(stack.enter_context(came))
                if len(held) % 8 == 0:
                    counts.append(_sockets(machines.process))

        flooding = threads.submit(flood)
        try:
            wait_until(lambda: len(held) > 600, 60.0, "there are many connections")
            begin = time.monotonic()
            assert _echoes(machines.gates[0].way(machines.there, "echo"), b"meanwhile")
            assert time.monotonic() - begin < 5.0
        finally:
            over.set()
        flooding.result()
        for connection in held:  # each is closed without a byte but an alert or a greeting of TLS's
            connection.settimeout(10.0)
            said = b""
            with suppress(ConnectionError):
                while data := connection.recv(1 << 16):
                    said += data
            assert said[:1] in (b"", b"\x15", b"\x16"), said
        assert time.monotonic() - begin < 30.0
    # Half of them were held at least; of all 601 that came some dropped ones may not be closed yet.
    assert most // 2 < max(counts) - own < most + 200


def test_a_flood_of_greetings_takes_little_memory(machines: Any) -> None:
    """Each says what TLS's client says first, and no more."""
    greeting = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), greeting).do_handshake()
    hello = greeting.read()
    assert _echoes(machines.gates[0].way(machines.there, "echo"), b"it has begun")
    before = _resident(machines.process)
    with ExitStack() as stack:
        for number in range(500):
            source = f"127.1.{number % 60}.1", 0
            came = socket.create_connection(("127.0.0.3", machines.port), 10.0, source)
            stack.enter_context(came).sendall(hello)
        assert _echoes(machines.gates[0].way(machines.there, "echo"), b"meanwhile")
        assert _resident(machines.process) - before < 60e6  # 90 MB by asyncio alone


def _resident(process: int) -> int:
    """Return a process's resident memory, bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _sockets(process: int) -> int:
    """Count a process's sockets."""
    found = 0
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += os.readlink(file).startswith("socket:")
    return found


def test_another_user_of_this_machine_is_not_answered(machines: Any) -> None:
    if os.geteuid():
        pytest.skip("needs root: another user")
    name = machines.gates[0]._socket.getpeername()
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(5.0)
                stranger.connect(name)
                stranger.sendall(b'{"target":1}\n')
                os._exit(1 if stranger.recv(1) else 0)
        except ConnectionError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_the_tunnel_ends_with_its_opener_and_its_end_is_noticed() -> None:
    tunnel = Tunnel(listen("127.0.0.5", 0), TOKEN, {})
    with Gate(tunnel.name):
        assert tunnel.ended == ""
        (process,) = [p for p in descendants(os.getpid()) if p.pid == tunnel._process.pid]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.signal(number)  # as from a terminal, to all
        time.sleep(0.2)
        assert process.alive()
        process.signal(signal.SIGKILL)
        wait_until(lambda: bool(tunnel.ended), 20.0, "its end is seen")
    with pytest.raises(GroupError, match="this machine's tunnel does not answer"):
        Gate(tunnel.name)
    tunnel.close()
