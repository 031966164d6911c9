"""Logs of throughput as traces: what was received, interval by interval, is what a link carries.

A sender that filled its link measured the link; of any other the trace is only what it took.
"""

from __future__ import annotations

import csv
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import TraceError, reading
from distrlcc.sim.trace import PACKETS_PER_MBIT, Trace, opportunities, read_file

Rates = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Of K intervals that follow one another: lengths, s, and rates, Mbit/s, each ``[K]``."""

_FCC_S = 5.0
"""Length of an interval of FCC's, whose measurements are hours apart: Pensieve's."""
_MOST_HOURS, _MOST_PACKETS = 4, 8_000_000
_MOST = f"a trace has {_MOST_HOURS} hours and {_MOST_PACKETS:,} packets at most: cut out a part"


def _columns(rows: list[list[str]], first: int = 1) -> NDArray[np.float64]:
    """Return rows of two numbers as two columns; the first is row ``first`` of the file."""
    for number, row in enumerate(rows, first):
        if len(row) != 2:
            raise ValueError(f"row {number} has {len(row)} numbers")
        for word in row:
            try:
                fine = np.isfinite(float(word))
            except ValueError:
                fine = False
            if not fine:
                raise ValueError(f"row {number} has {word[:40]!r}")
    return np.array(rows, float).T


def _csv(text: str) -> Rates:
    """Read lines of a time, s, and the rate from then on, Mbit/s; the first may name them."""
    lines = text.replace(",", " ").replace(";", " ").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    try:
        float(rows[0][0])
        first = 1
    except ValueError:
        rows, first = rows[1:], 2
    if len(rows) < 2:
        raise ValueError("two rows say how long the first lasts; it has fewer")
    times, mbps = _columns(rows, first)
    lengths = np.diff(times)
    if not (lengths > 0).all():
        raise ValueError(f"the time of row {first + 1 + int(np.argmin(lengths > 0))} is no later")
    return np.append(lengths, lengths[-1:]), mbps  # the last is as long as the one before


def _fcc(text: str) -> Rates:
    """Read rows of ``curr_webget.csv``, of one unit and target."""
    rows = list(csv.DictReader(text.splitlines()))
    pairs = {(row["unit_id"], row["target"]) for row in rows}
    if len(pairs) > 1:
        raise ValueError(f"{len(pairs)} pairs of unit_id and target; cut out the lines of one")
    mbps = np.array([row["bytes_sec"] for row in rows], float) * 8e-6
    return np.full(len(mbps), _FCC_S), mbps


def _hsdpa(text: str) -> Rates:
    """Read Unix time, ms since the start, latitude, longitude, bytes, ms that they took."""
    rows = [line.split()[4:6] for line in text.splitlines() if line.strip()]
    received, took = _columns(rows)
    some = took > 0
    return took[some] * 1e-3, received[some] * 8e-3 / took[some]


class _Interval(msgspec.Struct):
    seconds: float
    bits_per_second: float
    omitted: bool = False


class _Sums(msgspec.Struct):
    sum: _Interval


class _Iperf3(msgspec.Struct):
    intervals: list[_Sums]


def _iperf3(text: str) -> Rates:
    """Read what ``iperf3 -J`` writes; intervals that it omits are left out."""
    found = [each.sum for each in msgspec.json.decode(text, type=_Iperf3).intervals]
    kept = [each for each in found if not each.omitted]
    return (
        np.array([each.seconds for each in kept]),
        np.array([each.bits_per_second for each in kept]) * 1e-6,
    )


KINDS: dict[str, tuple[Callable[[str], Rates], str]] = {
    "csv": (_csv, "lines of two numbers: a time, s, and the rate from then on, Mbit/s"),
    "fcc": (_fcc, "lines of FCC's curr_webget.csv with its head, of one unit_id and target"),
    "hsdpa": (_hsdpa, "lines of six numbers: Unix time, ms, latitude, longitude, bytes, ms"),
    "iperf3": (_iperf3, "what iperf3 -J writes"),
}


def read_throughput(path: str, kind: str) -> Trace:
    """Return the trace of a link that carries what a log of a kind says.

    Raises:
        TraceError: The file is no such log, or is too long.
    """
    parse, expected = KINDS[kind]
    data = read_file(path)
    with (
        reading(TraceError, f"{path}: is no {kind} log", f"; expected {expected}"),
        np.errstate(all="ignore"),
    ):
        if not data.strip():
            raise ValueError("it is empty")
        lengths, mbps = parse(data.decode())
        if not len(mbps):
            raise ValueError("it has no intervals")
        known = len(lengths) == len(mbps) and np.isfinite([lengths, mbps]).all()
        if not (known and (lengths > 0).all() and (mbps >= 0).all() and mbps.any()):
            raise ValueError("times must increase; rates must be 0 or more, and not all of them 0")
        hours, packets = lengths.sum() / 3600, (lengths * mbps).sum() * PACKETS_PER_MBIT
        if hours > _MOST_HOURS or packets > _MOST_PACKETS:
            raise ValueError(f"{hours:.1f} hours and {packets:,.0f} packets; {_MOST}")
    # Packets that have left by the end of each ms.
    ends_ms = 1e3 * np.append(0.0, np.cumsum(lengths))
    sums = np.append(0.0, np.cumsum(lengths * mbps * PACKETS_PER_MBIT))
    left = np.interp(np.arange(max(round(ends_ms[-1]), 1) + 1), ends_ms, sums)
    return Trace(path, opportunities(np.diff(np.floor(left + 1e-6).astype(np.int64))) * 1_000_000)
