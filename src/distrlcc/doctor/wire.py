"""Measurement between two machines: ports, round trip, clocks and bandwidth.

The far side listens on one of the ports that Ray's workers use, as the same firewall counts.
"""

import socket
import socketserver
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from distrlcc.limits import limits

_PINGS = 20
_CHUNK = bytes(1 << 16)
_NUMBER = struct.Struct("!d")
_PING, _STREAMS = b"P", b"S"
_ALL = 8  # up to so many machines every pair; beyond, each with the head and its next two


@dataclass(frozen=True)
class Wire:
    """Measurements between two machines."""

    round_trip_ms: float  # shortest of up to twenty
    offset_ms: float  # their clock minus ours, from the shortest round trip, as NTP does
    up_mbit: float  # from here to there
    down_mbit: float

    def __str__(self) -> str:
        rates = f"{self.up_mbit:,.1f} Mbit/s there, {self.down_mbit:,.1f} Mbit/s back"
        return f"{self.round_trip_ms:.2f} ms, {rates}"


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs, as of a tournament; of over eight machines not all pairs meet."""
    found = []
    for bits in range(1, 1 << count.bit_length()):
        # In one round those meet whose numbers differ in the same bits.
        pairs = [(a, a ^ bits) for a in range(count) if a < a ^ bits < count]
        found.append([(a, b) for a, b in pairs if count <= _ALL or a == 0 or b - a <= 2])
    return [pairs for pairs in found if pairs]


class _Answers(socketserver.BaseRequestHandler):
    """Answers one connection."""

    def handle(self) -> None:
        connection = _ready(self.request)
        with suppress(OSError):
            while (kind := connection.recv(1)) == _PING:
                connection.sendall(_NUMBER.pack(time.time_ns()))
            if kind == _STREAMS:
                seconds = min(limits().call, _receive(connection))
                connection.sendall(_NUMBER.pack(_drain(connection)))
                _stream(connection, seconds)


def listen(address: str, first: int, last: int) -> int:
    """Answer measurements on the last free port of a range, as Ray's come last; raises OSError."""
    for port in range(last, first - 1, -1):
        try:
            server = socketserver.ThreadingTCPServer((address, port), _Answers)
        except OSError:
            continue
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True, name="doctor").start()
        return port
    raise OSError(f"none of the ports {first}-{last} is free on {address}")


def measure(address: str, port: int, seconds: float) -> Wire:
    """Measure to a listener, sending for some seconds in each direction; raises OSError."""
    with _ready(socket.create_connection((address, port), limits().call)) as connection:
        # The shortest round trip, and their clock less the middle of it, ns.
        best, first = (float("inf"), 0.0), time.monotonic()
        for _ in range(_PINGS):
            begin = time.time_ns()
            connection.sendall(_PING)
            theirs = _receive(connection)
            end = time.time_ns()
            best = min(best, (end - begin, theirs - (begin + end) / 2))
            if time.monotonic() - first > 1.0:
                break  # far away a few say enough
        # What the other side takes, and what comes from there.
        connection.sendall(_STREAMS + _NUMBER.pack(seconds))
        _stream(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        up = _receive(connection)
        return Wire(best[0] / 1e6, best[1] / 1e6, up, _drain(connection))


def reach(targets: list[tuple[str, int]]) -> list[str]:
    """Try to connect to all targets at once; return an error or nothing for each."""

    def attempt(target: tuple[str, int]) -> str:
        try:
            socket.create_connection(target, limits().call).close()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    with ThreadPoolExecutor(max(1, min(64, len(targets)))) as pool:
        return list(pool.map(attempt, targets))


def _ready(connection: socket.socket) -> socket.socket:
    connection.settimeout(limits().call)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive(connection: socket.socket) -> float:
    data = connection.recv(_NUMBER.size, socket.MSG_WAITALL)
    if len(data) < _NUMBER.size:
        raise ConnectionError("the other side closed the connection")
    number: float = _NUMBER.unpack(data)[0]
    return number


def _stream(connection: socket.socket, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.sendall(_CHUNK)


def _drain(connection: socket.socket) -> float:
    """Receive all that comes; return its rate from the first byte to the last, Mbit/s."""
    count, begin, end = 0, 0, 0
    while data := connection.recv(1 << 20):
        end = time.monotonic_ns()
        begin = begin or end
        count += len(data)
    return count * 8e3 / max(end - begin, 1)
