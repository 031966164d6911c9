"""Round trips, clocks and bandwidth on loopback; rounds of pairs in which no machine is twice."""

from __future__ import annotations

import socket
import socketserver
import threading
import time

import pytest

from distrlcc.doctor.wire import listen, measure, reach, rounds

HOST = "127.0.0.1"
RANGE = (21_000, 22_000)


@pytest.fixture
def port() -> int:
    return listen(HOST, *RANGE)


def test_loopback_is_near_fast_and_on_time(port: int) -> None:
    found = measure(HOST, port, 0.1)
    assert found.round_trip_ms > 0.0
    assert abs(found.offset_ms) <= found.round_trip_ms
    assert found.up_mbit > 0.0
    assert found.down_mbit > 0.0


def test_strangers_do_not_end_a_listener(port: int) -> None:
    for stray in (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"D"):
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.sendall(stray)
    assert measure(HOST, port, 0.05).round_trip_ms > 0.0


def test_a_taken_port_is_passed_over(port: int) -> None:
    assert listen(HOST, port - 5, port) < port
    with pytest.raises(OSError, match=f"none of the ports {port}-{port} is free"):
        listen(HOST, port, port)


def test_closed_ports_are_named_in_order(port: int) -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        closed = unused.getsockname()[1]
        found = reach([(HOST, closed), (HOST, port), (HOST, closed)])
    assert found == ["Connection refused", "", "Connection refused"]
    assert reach([]) == []


def test_a_silent_peer_costs_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=0.3")
    with socket.create_server((HOST, 0)) as silent, pytest.raises(OSError, match="timed out"):
        measure(HOST, silent.getsockname()[1], 0.1)


class _Far(socketserver.BaseRequestHandler):
    """Leads to a listener; a ping takes 0.3 s."""

    def handle(self) -> None:
        with socket.create_connection((HOST, self.server.there)) as there:  # type: ignore[attr-defined]
            back = threading.Thread(target=_relay, args=(there, self.request, 0.0), daemon=True)
            back.start()
            _relay(self.request, there, 0.3)
            back.join(10.0)


def _relay(source: socket.socket, target: socket.socket, delay: float) -> None:
    while data := source.recv(1 << 16):
        time.sleep(delay if len(data) == 1 else 0.0)
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def test_far_away_a_few_pings_are_enough(port: int) -> None:
    with socketserver.ThreadingTCPServer((HOST, 0), _Far) as server:
        server.there, server.daemon_threads = port, True  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        begin = time.monotonic()
        assert measure(HOST, server.server_address[1], 0.1).round_trip_ms >= 300.0
        assert time.monotonic() - begin < 4.0  # twenty take 6
        server.shutdown()


@pytest.mark.parametrize("count", range(9))
def test_up_to_eight_machines_all_meet_once(count: int) -> None:
    plan = rounds(count)
    met = [pair for pairs in plan for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    assert len(plan) < max(2 * count, 1)


@pytest.mark.parametrize("count", [9, 16, 33, 100])
def test_of_many_each_meets_the_head_and_its_neighbours(count: int) -> None:
    plan = rounds(count)
    for pairs in plan:
        busy = [number for pair in pairs for number in pair]
        assert len(busy) == len(set(busy))
    met = {pair for pairs in plan for pair in pairs}
    assert {(0, other) for other in range(1, count)} <= met
    assert {(number, number + 1) for number in range(count - 1)} <= met
    assert len(met) < 3 * count
