"""Packets at an emulated bottleneck, and their log in mahimahi's format, as mm-graph reads it."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from distrlcc.errors import writing
from distrlcc.net.emulator.link_config import DirectionConfig
from distrlcc.sim.queues import Packet
from distrlcc.types import PACKET_BYTES

_TCP, _UDP = 6, 17
_IPV4_BYTES = 20
_ECN = 3  # the two bits of an IPv4 header's second byte; both are set in a marked packet


@dataclass(slots=True)
class Datagram(Packet):
    """A packet with its contents."""

    data: bytes = b""


class LinkLog:
    """Writes a line per arrival, opportunity, departure and drop; times are ms."""

    def __init__(self, path: Path, port: int | None = None) -> None:
        """Open the file; with a ``port`` it has only its packets, and does not replay."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("w", encoding="utf-8", errors="surrogateescape")
        self._path, self._port = path, port
        self.failure = ""  # why it ended early, one line; what it logs matters less than the link

    def _do(self, action: Callable[..., object], *arguments: str) -> None:
        try:
            if not self.failure:
                action(*arguments)
        except OSError as error:
            self.failure = f"{self._path} is not whole: it cannot be written ({error.strerror})"

    def _write(self, text: str) -> None:
        self._do(self._file.write, text)

    def header(
        self, name: str, config: DirectionConfig, *, command_line: Sequence[str], base: int
    ) -> None:
        """Write the header of ``Uplink`` or ``Downlink``, whose time begins at ``base``, ms."""
        queue, base = config.queue, base - config.phase_ms
        kind = queue.kind if queue.kind == "infinite" else f"{queue.kind} [{queue.arguments}]"
        words = " ".join(f"'{word}'" for word in command_line)
        lines = (
            f"# mahimahi mm-link ({name}) [{config.source}] > {self._path}",
            f"# command line: {words}",
            f"# queue: {kind}",
            f"# init timestamp: {time.time_ns() // 1_000_000 - base}",
            f"# base timestamp: {base}",
            f"# mahimahi config: [delay {config.delay_ms:g} ms] ",
            *(() if self._port is None else (f"# port: {self._port}",)),
        )
        self._write("".join(line.replace("\n", " ") + "\n" for line in lines))

    def _concerns(self, packet: Packet) -> bool:
        if self._port is None:
            return True
        assert isinstance(packet, Datagram)
        return self._port in (ports(packet.data) or ())

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

    def drops(self, now: int, packets: Sequence[Packet]) -> None:
        """Note packets that an arrival or a departure cost."""
        if sizes := [packet.size for packet in packets if self._concerns(packet)]:
            self._write(f"{now} d {len(sizes)} {sum(sizes)}\n")

    def flush(self) -> None:
        """Let others read what has been written."""
        self._do(self._file.flush)

    def close(self) -> None:
        """Close the file."""
        self.flush()
        with suppress(OSError):
            self._file.close()


def is_capable(data: bytes) -> bool:
    """Tell whether an IPv4 packet may be marked: whether it is of an ECN-capable transport."""
    return len(data) >= _IPV4_BYTES and data[0] >> 4 == 4 and data[1] & _ECN > 0


def with_mark(data: bytes) -> bytes:
    """Return an IPv4 packet with a mark of congestion (RFC 3168 section 5)."""
    header = bytearray(data)
    header[1] |= _ECN
    # The checksum follows the header's word (RFC 1624, equation 3).
    total = (int.from_bytes(data[10:12]) ^ 0xFFFF) + header[1] - data[1]
    header[10:12] = ((total & 0xFFFF) + (total >> 16) ^ 0xFFFF).to_bytes(2)
    return bytes(header)


def ports(data: bytes) -> tuple[int, int] | None:
    """Return an IPv4 packet's UDP or TCP ports; None: it has none, is cut short, or a fragment."""
    if len(data) < _IPV4_BYTES or data[0] >> 4 != 4:
        return None
    place, later_fragment = 4 * (data[0] & 15), int.from_bytes(data[6:8]) & 0x1FFF
    fits = _IPV4_BYTES <= place <= len(data) - 4
    if not fits or later_fragment or data[9] not in (_TCP, _UDP):
        return None
    return int.from_bytes(data[place : place + 2]), int.from_bytes(data[place + 2 : place + 4])
