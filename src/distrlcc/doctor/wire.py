"""Measurement between two machines: ports, round trip, clocks and bandwidth.

The far side listens on one of the ports that Ray's workers use, so that what is measured has
passed the same firewall. It takes three kinds of connections: pings, which it answers with its
clock, and streams in either direction.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

_PINGS = 20
_CHUNK = bytes(1 << 16)
_SECONDS = 3.0
"""Time limit of each connection, s."""
_LIFE_SECONDS = 120.0
"""A listener ends after so long without a connection."""
_CLOCKS = struct.Struct("!qq")
_LENGTH = struct.Struct("!d")
_PING, _UP, _DOWN = b"P", b"U", b"D"
_ALL = 8
"""Up to so many machines every pair is measured; beyond, each with the head and its next two."""


@dataclass(frozen=True)
class Wire:
    """What was measured between here and there."""

    round_trip_ms: float
    """Shortest of twenty."""
    offset_ms: float
    """Their clock minus ours, from the shortest round trip, as NTP does."""
    up_mbit: float
    """From here to there."""
    down_mbit: float


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of numbers in which no number is twice, as at a tournament.

    Each pair meets once. Of more than eight machines not all pairs meet: that would take too long.
    """
    even = count + count % 2
    found = []
    for turn in range(even - 1 if count > 1 else 0):
        # The circle method: the last one stays, the others move on by one seat.
        seats = [(turn + seat) % (even - 1) for seat in range(even - 1)]
        meets = [(seats[0], even - 1)]
        meets += [(seats[k], seats[even - 1 - k]) for k in range(1, even // 2)]
        pairs = [(min(meet), max(meet)) for meet in meets if max(meet) < count]
        found.append([(a, b) for a, b in pairs if count <= _ALL or a == 0 or b - a <= 2])
    return [pairs for pairs in found if pairs]


def listen(address: str, first: int, last: int) -> int:
    """Answer measurements on the last free port of a range, where Ray's own come last; return it.

    Raises:
        OSError: None is free.
    """
    for port in range(last, first - 1, -1):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((address, port))
            listener.listen(16)
        except OSError:
            listener.close()
            continue
        listener.settimeout(_LIFE_SECONDS)
        threading.Thread(target=_serve, args=(listener,), daemon=True, name="doctor").start()
        return port
    raise OSError(f"none of the ports {first}-{last} is free on {address}")


def measure(address: str, port: int, seconds: float) -> Wire:
    """Measure to a listener.

    Args:
        address: Its address.
        port: Its port.
        seconds: How long to send in each direction.

    Raises:
        OSError: The connection fails or takes too long.
    """
    # The shortest round trip, and the clocks' offset, ns.
    best = (float("inf"), 0.0)
    with _connect(address, port) as connection:
        for _ in range(_PINGS):
            begin = time.time_ns()
            connection.sendall(_PING)
            came, left = _CLOCKS.unpack(_exactly(connection, _CLOCKS.size))
            end = time.time_ns()
            best = min(best, (end - begin - (left - came), ((came - begin) + (left - end)) / 2))
    # What the other side takes, and what comes from there.
    with _connect(address, port) as connection:
        connection.sendall(_UP)
        _stream(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        up = _mbit(*_CLOCKS.unpack(_exactly(connection, _CLOCKS.size)))
    with _connect(address, port) as connection:
        connection.sendall(_DOWN + _LENGTH.pack(seconds))
        down = _mbit(*_drain(connection))
    return Wire(best[0] / 1e6, best[1] / 1e6, up, down)


def reach(targets: list[tuple[str, int]], seconds: float) -> list[str]:
    """Try to connect to all targets at once; return an error or nothing for each."""

    def attempt(target: tuple[str, int]) -> str:
        try:
            socket.create_connection(target, seconds).close()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    with ThreadPoolExecutor(max(1, min(64, len(targets)))) as pool:
        return list(pool.map(attempt, targets))


def _serve(listener: socket.socket) -> None:
    with listener, suppress(OSError):  # too old
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    connection.settimeout(_SECONDS)
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (kind := connection.recv(1)) == _PING:
            connection.sendall(_CLOCKS.pack(time.time_ns(), time.time_ns()))
        if kind == _UP:
            connection.sendall(_CLOCKS.pack(*_drain(connection)))
        elif kind == _DOWN:
            (seconds,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
            _stream(connection, min(_SECONDS, seconds))


def _connect(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), _SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the other side closed the connection")
        data += more
    return data


def _stream(connection: socket.socket, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.sendall(_CHUNK)


def _drain(connection: socket.socket) -> tuple[int, int]:
    """Return how many bytes came and in what time, ns, from the first to the last."""
    count, begin, end = 0, 0, 0
    while data := connection.recv(1 << 20):
        end = time.monotonic_ns()
        begin = begin or end
        count += len(data)
    return count, end - begin


def _mbit(count: int, nanoseconds: int) -> float:
    return count * 8e3 / max(nanoseconds, 1)
