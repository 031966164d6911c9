"""Whose packet it is: ports, and what has none; and a log of one port alone."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from distrlcc.errors import TraceError
from distrlcc.net.emulator.direction import MILLISECOND, Direction
from distrlcc.net.emulator.link_config import direction
from distrlcc.net.emulator.link_log import LinkLog, ports
from distrlcc.sim.link import read_log, replay
from distrlcc.sim.queues import parse_queue
from distrlcc.sim.trace import parse_trace

TCP, UDP, ICMP = 6, 17, 1
TWO_PORTS = struct.pack("!HH", 40000, 4730)


def _ipv4(protocol: int, payload: bytes, *, offset: int = 0, words: int = 5) -> bytes:
    size = 20 + len(payload)
    header = struct.pack("!BBHHHBBH8x", 0x40 | words, 0, size, 1, offset, 64, protocol, 0)
    return header + bytes(4 * (words - 5)) + payload


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (_ipv4(UDP, TWO_PORTS), (40000, 4730)),
        (_ipv4(TCP, TWO_PORTS + bytes(16)), (40000, 4730)),
        (_ipv4(TCP, TWO_PORTS, words=8), (40000, 4730)),
        (_ipv4(UDP, TWO_PORTS, offset=0x2000), (40000, 4730)),  # the first of several fragments
        (_ipv4(UDP, TWO_PORTS, offset=0x4000), (40000, 4730)),  # that may not be cut
        (b"", None),
        (b"\x45", None),
        (_ipv4(ICMP, TWO_PORTS + bytes(8)), None),
        (_ipv4(UDP, TWO_PORTS[:3]), None),
        (_ipv4(UDP, TWO_PORTS, offset=0x00B9), None),  # a later fragment
        (_ipv4(UDP, TWO_PORTS, words=5)[:19], None),
        (b"\x43" + _ipv4(UDP, TWO_PORTS)[1:], None),  # a header that is shorter than headers are
        (b"\x60" + bytes(6) + bytes([UDP]) + bytes(32) + TWO_PORTS, None),  # IPv6 crosses no link
        (b"x" * 1500, None),
    ],
)
def test_ports_are_found_where_there_are_some(
    packet: bytes, expected: tuple[int, int] | None
) -> None:
    assert ports(packet) == expected


def test_a_ports_log_holds_its_packets_and_all_opportunities(tmp_path: Path) -> None:
    mine = _ipv4(UDP, TWO_PORTS + bytes(1476))
    answer = _ipv4(UDP, TWO_PORTS[2:] + TWO_PORTS[:2] + bytes(36))
    other = _ipv4(TCP, struct.pack("!HH", 40000, 4731) + bytes(1476))
    config = direction("12", queue=parse_queue("droptail:packets=3"), delay_ms=0)
    whole, own = LinkLog(tmp_path / "whole"), LinkLog(tmp_path / "own", 4730)
    for log in (whole, own):
        log.header("Uplink", config, command_line=(), base=0)
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
