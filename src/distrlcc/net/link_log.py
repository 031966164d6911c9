"""Packets at an emulated bottleneck, and their log in mahimahi's format.

`distrlcc check link` and mm-graph read it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from distrlcc.errors import OutputError
from distrlcc.sim.queues import Packet, QueueSpec
from distrlcc.types import PACKET_BYTES

_TCP, _UDP = 6, 17
_IPV4_BYTES, _IPV6_BYTES = 20, 40
_FRAGMENT, _AUTHENTICATION = 44, 51
# Hop-by-hop options, routing and destination options give their length in units of 8 bytes.
_OPTIONS = (0, 43, 60)


@dataclass(slots=True)
class Datagram(Packet):
    """A packet with its contents."""

    data: bytes = b""


class LinkLog:
    """Writes a line per arrival, opportunity, departure and drop; times are ms."""

    def __init__(self, path: Path, port: int | None = None) -> None:
        """Open the file.

        With ``port`` packets are left out that are neither to nor from this UDP or TCP port. All
        opportunities stay, so that a flow's share can be told; such a log does not replay.

        Raises:
            OutputError: It cannot be written.
        """
        try:
            self._file: TextIO = path.open("w", encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from None
        self._path, self._port = path, port
        self.failure = ""
        """Why it ended early, one line; what it logs matters less than the link."""

    def _write(self, text: str) -> None:
        if self.failure:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = f"{self._path} is not whole: it cannot be written ({error.strerror})"

    def header(
        self,
        *,
        direction: str,
        trace: str,
        command_line: Sequence[str],
        queue: QueueSpec,
        base: int,
        delay_ms: float,
    ) -> None:
        """Write the header lines, in mahimahi's order.

        ``direction`` is ``Uplink`` or ``Downlink``, ``trace`` a trace's name or a rate, and
        ``base`` the trace's time zero.
        """
        kind = queue.kind if queue.kind == "infinite" else f"{queue.kind} [{queue.arguments}]"
        words = " ".join(f"'{word}'" for word in command_line)
        lines = (
            f"# mahimahi mm-link ({direction}) [{trace}] > {self._path}",
            f"# command line: {words}",
            f"# queue: {kind}",
            f"# init timestamp: {time.time_ns() // 1_000_000 - base}",
            f"# base timestamp: {base}",
            f"# mahimahi config: [delay {delay_ms:g} ms] ",
            *(() if self._port is None else (f"# port: {self._port}",)),
        )
        self._write("".join(line.replace("\n", " ") + "\n" for line in lines))

    def _concerns(self, packet: Datagram) -> bool:
        return self._port is None or self._port in (ports(packet.data) or ())

    def arrival(self, now: int, packet: Datagram) -> None:
        """Note an arrival, whether or not it is dropped then."""
        if self._concerns(packet):
            self._write(f"{now} + {packet.size}\n")

    def opportunity(self, now: int) -> None:
        """Note an opportunity, used or not."""
        self._write(f"{now} # {PACKET_BYTES}\n")

    def departure(self, now: int, packet: Datagram) -> None:
        """Note a departure."""
        if self._concerns(packet):
            self._write(f"{now} - {packet.size} {now - packet.arrival}\n")

    def drops(self, now: int, packets: Sequence[Datagram]) -> None:
        """Note packets that an arrival or a departure cost."""
        sizes = [packet.size for packet in packets if self._concerns(packet)]
        if sizes:
            self._write(f"{now} d {len(sizes)} {sum(sizes)}\n")

    def flush(self) -> None:
        """Let others read what has been written."""
        if self.failure:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:  # of what was not written yet
            self._fail(error)


def ports(data: bytes) -> tuple[int, int] | None:
    """Return the source and destination port of an IP packet that carries UDP or TCP.

    None where it carries something else, is cut short, or is a later fragment, which has none.
    """
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= _IPV4_BYTES:
        protocol, place = data[9], 4 * (data[0] & 15)
        if place < _IPV4_BYTES or int.from_bytes(data[6:8]) & 0x1FFF:
            return None
    elif version == 6 and len(data) >= _IPV6_BYTES:
        protocol, place = _after_extensions(data)
    else:
        return None
    if protocol not in (_TCP, _UDP) or len(data) < place + 4:
        return None
    return int.from_bytes(data[place : place + 2]), int.from_bytes(data[place + 2 : place + 4])


def _after_extensions(data: bytes) -> tuple[int, int]:
    """Return what an IPv6 packet carries, and where; -1 for what cannot be told."""
    protocol, place = data[6], _IPV6_BYTES
    while len(data) >= place + 8:
        if protocol in _OPTIONS:
            length = 8 * (data[place + 1] + 1)
        elif protocol == _AUTHENTICATION:
            length = 4 * (data[place + 1] + 2)
        elif protocol == _FRAGMENT:
            if int.from_bytes(data[place + 2 : place + 4]) >> 3:
                return -1, place
            length = 8
        else:
            break
        protocol, place = data[place], place + length
    return protocol, place
