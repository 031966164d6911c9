"""Whose packet it is: ports in IPv4 and IPv6, and what has none; and a log of one port alone."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.errors import TraceError
from distrlcc.net.direction import MILLISECOND, Direction
from distrlcc.net.link_config import direction
from distrlcc.net.link_log import LinkLog, ports
from distrlcc.sim.link import read_log, replay
from distrlcc.sim.queues import parse_queue
from distrlcc.sim.trace import parse_trace

TCP, UDP, ICMP = 6, 17, 1
TWO_PORTS = struct.pack("!HH", 40000, 4730)


def _ipv4(protocol: int, payload: bytes, *, offset: int = 0, words: int = 5) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x40 | words, 0, 20 + len(payload), 1, offset, 64, protocol, 0,
        bytes(4), bytes(4),
    )  # fmt: skip
    return header + bytes(4 * (words - 5)) + payload


def _ipv6(following: int, payload: bytes) -> bytes:
    header = struct.pack("!IHBB", 6 << 28, len(payload), following, 64)
    return header + bytes(32) + payload


@pytest.mark.parametrize(
    "packet",
    [
        _ipv4(UDP, TWO_PORTS),
        _ipv4(TCP, TWO_PORTS + bytes(16)),
        _ipv4(TCP, TWO_PORTS, words=8),
        _ipv4(UDP, TWO_PORTS, offset=0x2000),  # the first of several fragments
        _ipv4(UDP, TWO_PORTS, offset=0x4000),  # that may not be cut
        _ipv6(UDP, TWO_PORTS + bytes(4)),
        _ipv6(TCP, TWO_PORTS + bytes(16)),
        _ipv6(0, bytes([UDP, 0]) + bytes(6) + TWO_PORTS + bytes(4)),
        _ipv6(0, bytes([60, 0]) + bytes(6) + bytes([TCP, 1]) + bytes(14) + TWO_PORTS + bytes(16)),
        _ipv6(44, bytes([UDP, 0, 0, 1]) + bytes(4) + TWO_PORTS + bytes(4)),
        _ipv6(51, bytes([UDP, 1]) + bytes(10) + TWO_PORTS + bytes(4)),
    ],
)
def test_ports_are_found(packet: bytes) -> None:
    assert ports(packet) == (40000, 4730)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\x45",
        _ipv4(ICMP, TWO_PORTS + bytes(8)),
        _ipv4(UDP, TWO_PORTS[:3]),
        _ipv4(UDP, TWO_PORTS, offset=0x00B9),  # a later fragment
        _ipv4(UDP, TWO_PORTS, words=5)[:19],
        b"\x43" + _ipv4(UDP, TWO_PORTS)[1:],  # a header that is shorter than headers are
        _ipv6(58, TWO_PORTS + bytes(4)),
        _ipv6(UDP, TWO_PORTS)[:39],
        _ipv6(UDP, TWO_PORTS[:3]),
        _ipv6(0, bytes([UDP, 255]) + bytes(6) + TWO_PORTS),  # options beyond the packet's end
        _ipv6(44, bytes([UDP, 0, 0, 8]) + bytes(4) + TWO_PORTS + bytes(4)),
        b"x" * 1500,
    ],
)
def test_what_has_no_ports(packet: bytes) -> None:
    assert ports(packet) is None


def test_a_ports_log_holds_its_packets_and_all_opportunities(tmp_path: Path) -> None:
    mine = _ipv4(UDP, TWO_PORTS + bytes(1476))
    answer = _ipv4(UDP, TWO_PORTS[2:] + TWO_PORTS[:2] + bytes(36))
    other = _ipv4(TCP, struct.pack("!HH", 40000, 4731) + bytes(1476))
    config = direction("12", queue=parse_queue("droptail:packets=3"), delay_ms=0)
    whole, own = LinkLog(tmp_path / "whole"), LinkLog(tmp_path / "own", 4730)
    for log in (whole, own):
        log.header(
            direction="Uplink", trace="12", command_line=(), queue=config.queue, base=0, delay_ms=0
        )
    way = Direction(replace(config), random.Random(1), logs=[whole, own])
    way.begin(0)
    for k, data in enumerate([mine, other, answer, mine, other]):  # the queue takes three
        way.arrive(data, now=k)
    way.advance(now=10 * MILLISECOND)
    whole.close()
    own.close()
    all_events, events = read_log(tmp_path / "whole").events, read_log(tmp_path / "own").events
    assert [e for e in events if e[1] == "#"] == [e for e in all_events if e[1] == "#"]
    assert len([e for e in events if e[1] == "#"]) == 10
    assert [e[2] for e in events if e[1] == "+"] == [1504, 64, 1504]
    assert [e for e in events if e[1] == "-"] == [(1, "-", 1504, 1), (3, "-", 64, 3)]
    assert [e for e in events if e[1] == "d"] == [(0, "d", 1, 1504)]
    assert len([e for e in all_events if e[1] == "d"]) == 2
    trace = parse_trace(b"1\n", "12")
    assert replay(read_log(tmp_path / "whole"), trace).mismatches == ()
    with pytest.raises(TraceError, match="port 4730 alone, which does not replay"):
        replay(read_log(tmp_path / "own"), trace)
