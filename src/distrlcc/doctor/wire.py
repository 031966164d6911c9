"""One connection's worth of measurement between two machines: round trip, clocks and bandwidth.

The far side listens on one of the ports that Ray's workers use, so that what is measured has
passed the same firewall. It takes three kinds of connections: pings, which it answers with its
clock, and streams in either direction.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

_PINGS = 20
_CHUNK = bytes(1 << 16)
_SECONDS = 3.0
"""Time limit of each connection, s."""
_LIFE_SECONDS = 120.0
"""A listener ends after this long."""
_CLOCKS = struct.Struct("!qq")
_LENGTH = struct.Struct("!d")
_PING, _UP, _DOWN = b"P", b"U", b"D"


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


class Listener:
    """Answers measurements until it is closed, for two minutes at most."""

    def __init__(self, address: str, ports: range) -> None:
        """Listen on the first of the ports that is free.

        Raises:
            OSError: None is.
        """
        self._socket = _bound(address, ports)
        self.port = int(self._socket.getsockname()[1])
        self._socket.settimeout(_LIFE_SECONDS)
        threading.Thread(target=self._serve, daemon=True, name="doctor").start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed, or too old
                self._socket.close()
                return
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


_listeners: list[Listener] = []
"""Of this process, so that a function that runs elsewhere can leave one behind."""


def listen(address: str, first: int, last: int) -> int:
    """Listen on the first free port of a range; return it."""
    # From the far end, where Ray's own workers come last.
    _listeners.append(Listener(address, range(last, first - 1, -1)))
    return _listeners[-1].port


def measure(address: str, port: int, seconds: float) -> Wire:
    """Measure to a listener.

    Args:
        address: Its address.
        port: Its port.
        seconds: How long to send in each direction.

    Raises:
        OSError: The connection fails or takes too long.
    """
    round_trip, offset = _ping(address, port)
    return Wire(round_trip, offset, _send(address, port, seconds), _take(address, port, seconds))


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


def _bound(address: str, ports: range) -> socket.socket:
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((address, port))
            listener.listen(16)
        except OSError:
            listener.close()
            continue
        return listener
    raise OSError(f"none of the ports {min(ports)}-{max(ports)} is free on {address}")


def _clock() -> int:
    """Return this machine's wall clock, ns."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


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


def _ping(address: str, port: int) -> tuple[float, float]:
    """Return the shortest round trip and the clocks' offset, ms."""
    best = (float("inf"), 0.0)
    with _connect(address, port) as connection:
        for _ in range(_PINGS):
            begin = _clock()
            connection.sendall(_PING)
            came, left = _CLOCKS.unpack(_exactly(connection, _CLOCKS.size))
            end = _clock()
            sample = (end - begin - (left - came), ((came - begin) + (left - end)) / 2)
            best = min(best, sample)
    return best[0] / 1e6, best[1] / 1e6


def _send(address: str, port: int, seconds: float) -> float:
    """Return what the other side took, Mbit/s."""
    with _connect(address, port) as connection:
        connection.sendall(_UP)
        _stream(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        count, took = _CLOCKS.unpack(_exactly(connection, _CLOCKS.size))
    return _mbit(count, took)


def _take(address: str, port: int, seconds: float) -> float:
    """Return what came from the other side, Mbit/s."""
    with _connect(address, port) as connection:
        connection.sendall(_DOWN + _LENGTH.pack(seconds))
        return _mbit(*_drain(connection))


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


def _answer(connection: socket.socket) -> None:
    connection.settimeout(_SECONDS)
    handlers: dict[bytes, Callable[[socket.socket], None]] = {
        _UP: lambda c: c.sendall(_CLOCKS.pack(*_drain(c))),
        _DOWN: lambda c: _stream(c, min(_SECONDS, *_LENGTH.unpack(_exactly(c, _LENGTH.size)))),
    }
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while kind := connection.recv(1):
            came = _clock()
            if kind == _PING:
                connection.sendall(_CLOCKS.pack(came, _clock()))
            elif kind in handlers:
                handlers[kind](connection)
                return
            else:
                return
