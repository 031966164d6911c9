"""Traces of a link's opportunities in mahimahi's format, read from files or generated.

A trace is named by a path, or by a generator: ``cellular:SEED`` and ``poisson:MBPS:SEED`` (see
`distrlcc.sim.synthetic`). One line of a file is a time in ms at which the link may send one packet
of `PACKET_BYTES`; equal lines are several opportunities; after the last line the trace wraps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import TraceError
from distrlcc.sim.synthetic import generate
from distrlcc.types import PACKET_BYTES

MAX_BYTES = 64 * 1024 * 1024
MAX_MS = 10**10
_EXPECTED = "expected one whole number of milliseconds per line, never decreasing, the last above 0"


@dataclass(frozen=True, eq=False)
class Trace:
    """A link's opportunities over one period."""

    name: str
    times_ns: NDArray[np.int64]
    """When the link may send a packet, ns, not decreasing; the last is the period."""

    @property
    def period_ns(self) -> int:
        """Length of one period, ns."""
        return int(self.times_ns[-1])

    @property
    def mean_mbps(self) -> float:
        """Mean rate over one period, Mbit/s."""
        return float(len(self.times_ns) * PACKET_BYTES * 8e3 / self.period_ns)


def parse_trace(data: bytes, name: str) -> Trace:
    """Parse the bytes of a trace file.

    Raises:
        TraceError: The data are empty, malformed or decreasing; the line is named.
    """
    plain = not data.translate(None, b"0123456789 \t\r\n")
    try:
        times = np.array(data.split() if plain else ["?"], dtype=np.int64)
    except (ValueError, OverflowError):
        times = np.array([_parse_line(name, n, t) for n, t in _lines(data)], dtype=np.int64)
    if len(times) == 0:
        raise TraceError(f"{name}: the trace is empty; {_EXPECTED}")
    if times[0] < 0:
        raise TraceError(f"{name}, line 1: time {times[0]} is negative; {_EXPECTED}")
    falls = np.flatnonzero(np.diff(times) < 0)
    if len(falls):
        k = int(falls[0])
        raise TraceError(
            f"{name}, entry {k + 2}: time {times[k + 1]} comes after {times[k]}; {_EXPECTED}"
        )
    if times[-1] == 0:
        raise TraceError(f"{name}: the last time is 0, so the trace has no period; {_EXPECTED}")
    if times[-1] > MAX_MS:
        raise TraceError(f"{name}: the last time, {times[-1]} ms, is above the limit of {MAX_MS}")
    several = re.search(rb"\d[ \t]+\d", data)
    if several is not None:
        line = data.count(b"\n", 0, several.start()) + 1
        raise TraceError(f"{name}, line {line}: several values stand on it; {_EXPECTED}")
    return Trace(name, times * 1_000_000)


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    return [(n, text.strip()) for n, text in enumerate(data.splitlines(), 1) if text.strip()]


def _parse_line(name: str, number: int, text: bytes) -> int:
    try:
        value = int(text) if re.fullmatch(rb"-?\d+", text) else None
    except ValueError:
        value = None
    if value is None:
        shown = text[:40].decode("ascii", "backslashreplace")
        raise TraceError(f"{name}, line {number}: {shown!r} is not a time; {_EXPECTED}")
    if abs(value) > MAX_MS:
        raise TraceError(f"{name}, line {number}: {value} ms is beyond the limit of {MAX_MS}")
    return value


@lru_cache(maxsize=4096)
def load_trace(spec: str) -> Trace:
    """Read or generate the trace that a name stands for.

    Raises:
        TraceError: No such file or generator, or its contents are no trace.
    """
    generated = generate(spec)
    if generated is not None:
        return Trace(spec, generated * 1_000_000)
    path = Path(spec)
    try:
        size = path.stat().st_size
        if not path.is_file():
            what = "a folder" if path.is_dir() else "no regular file"
            raise TraceError(f"{spec}: is {what}; expected a trace file")
        if size > MAX_BYTES:
            raise TraceError(
                f"{spec}: {size / 1e6:.0f} MB is above the limit of {MAX_BYTES / 1e6:.0f} MB; "
                "cut the trace into shorter ones"
            )
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{spec}: cannot be read ({error.strerror}); check the path") from None
    return parse_trace(data, spec)
