"""Round trips, clocks and bandwidth over real connections on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from distrlcc.doctor.wire import Listener, measure, reach

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener(HOST, range(21_000, 22_000))
    yield made
    made.close()


def test_loopback_is_near_fast_and_on_time(listener: Listener, thrice: Callable[..., None]) -> None:
    def once() -> None:
        begin = time.monotonic()
        found = measure(HOST, listener.port, 0.1)
        assert time.monotonic() - begin < 5.0
        assert 0.0 < found.round_trip_ms < 50.0
        assert abs(found.offset_ms) < 50.0
        assert found.up_mbit > 30.0
        assert found.down_mbit > 30.0

    thrice(once)


def test_strangers_do_not_end_a_listener(listener: Listener) -> None:
    for stray in (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"D"):
        with socket.create_connection((HOST, listener.port), 2.0) as connection:
            connection.sendall(stray)
    assert measure(HOST, listener.port, 0.05).round_trip_ms > 0.0


def test_a_taken_port_is_passed_over(listener: Listener) -> None:
    other = Listener(HOST, range(listener.port, listener.port + 5))
    assert other.port != listener.port
    with pytest.raises(OSError, match=f"none of the ports {other.port}-{other.port} is free"):
        Listener(HOST, range(other.port, other.port + 1))
    other.close()


def test_closed_ports_are_named_in_order(listener: Listener) -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        closed = unused.getsockname()[1]
        found = reach([(HOST, closed), (HOST, listener.port), (HOST, closed)], 1.0)
    assert found == ["Connection refused", "", "Connection refused"]
    assert reach([], 1.0) == []


def test_a_silent_peer_costs_bounded_time() -> None:
    with socket.create_server((HOST, 0)) as silent:
        begin = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            measure(HOST, silent.getsockname()[1], 0.1)
        assert time.monotonic() - begin < 20.0
