"""A link's log in mahimahi's format, which `distrlcc check link` and mm-graph read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from distrlcc.errors import OutputError
from distrlcc.net.datagram import Datagram, ports
from distrlcc.sim.queues import QueueSpec
from distrlcc.types import PACKET_BYTES


class LinkLog:
    """Writes a line per arrival, opportunity, departure and drop; times are ms."""

    def __init__(self, path: Path, port: int | None = None) -> None:
        """Open the file.

        Args:
            path: The file.
            port: Leave out packets that are neither to nor from this UDP or TCP port. All
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

        Args:
            direction: ``Uplink`` or ``Downlink``.
            trace: What the link runs: a trace's name or a rate.
            command_line: Ours.
            queue: The link's.
            base: The trace's time zero.
            delay_ms: One way, beside the link.
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
