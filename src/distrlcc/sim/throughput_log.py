"""Logs of throughput as traces: the bytes received in an interval are the link's capacity there.

A sender that filled its link measured the link; any other's trace is only what it took.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrlcc.errors import ConfigError, TraceError, reading
from distrlcc.sim import trace as traces
from distrlcc.sim.csv_log import Units, given_units, number_in, read_csv
from distrlcc.sim.scenario import MAX_RATE_MBPS, Change, Link, Scenario
from distrlcc.types import FloatArray

_FCC_S = 5.0  # length of an interval of FCC's, whose measurements are hours apart: Pensieve's
_MOST_HOURS = 4
_LEAST_S = 0.1  # a scenario's least, and a hundred times what a trace's times tell apart
_PIECE = 1 << 20
_NO_JSON = re.compile(rb"(?<=[:,\[])\s*[+-]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
"""A value that C's printf writes and JSON does not know."""
_SENDERS = (
    "is the sender's, which says what went into its socket: take the server's log (iperf3 -s -J, "
    "or --get-server-output), or let the client receive (iperf3 -c HOST -R)"
)


@dataclass(frozen=True, eq=False)
class ThroughputLog:
    """Rates, and perhaps delays and losses, of a link in K intervals that follow one another."""

    lengths: FloatArray  # lengths of the intervals, s, ``[K]``
    mbps: FloatArray  # rates, Mbit/s, ``[K]``
    delay_ms: FloatArray | None = None  # one-way delays, ms, ``[K]``, if the log has them
    loss: FloatArray | None = None  # probabilities of loss, ``[K]``, if the log has them
    queue_packets: int | None = None
    jitter_ms: float = 0.0
    notes: tuple[str, ...] = ()  # how the log was read

    def trace(self, name: str) -> traces.Trace:
        """Return the trace of a link that carries what the log says; raises TraceError."""
        ends_ms = 1e3 * np.append(0.0, np.cumsum(self.lengths))
        sums = np.append(0.0, np.cumsum(self.lengths * self.mbps * traces.PACKETS_PER_MBIT))
        traces.require_memory(name, 16 * sums[-1])
        # The k-th packet leaves in the millisecond by whose end k packets' time has passed.
        total, period = int(sums[-1] + 1e-6), max(round(ends_ms[-1]), 1)
        times = np.full(total + 1, period)
        for start in range(0, total, _PIECE):
            counts = np.arange(start + 1, min(start + _PIECE, total) + 1)
            left = np.ceil(np.interp(counts - 1e-6, sums, ends_ms))
            times[start : start + len(counts)] = np.clip(left, 1, period)
        # The last is the period, as a file's last line.
        times = times[: total + (total == 0 or times[total - 1] < period)]
        times *= 1_000_000
        return traces.Trace(name, times)

    def scenario(self, name: str) -> Scenario:
        """Return a scenario whose link changes as the log says; raises ConfigError."""
        times = np.round(np.cumsum(self.lengths), 9).tolist()
        columns = {"rate_mbps": self.mbps, "delay_ms": self.delay_ms, "loss": self.loss}
        values = {key: column.tolist() for key, column in columns.items() if column is not None}
        changes = [
            Change(at, **changed)
            for k, at in enumerate(times[:-1], 1)
            if (changed := {key: v[k] for key, v in values.items() if v[k] != v[k - 1]})
        ]
        ends_silent = bool(self.mbps[-1] == 0)
        if ends_silent:  # a link cannot: it begins anew, for a millisecond
            changes.append(Change(times[-1], rate_mbps=float(self.mbps[self.mbps > 0][0])))
        link = Link(
            **{key: column[0] for key, column in values.items()},
            queue_packets=self.queue_packets,
            jitter_ms=self.jitter_ms,
            changes=tuple(changes),
        )
        return Scenario(name, link, duration_s=times[-1] + 1e-3 * ends_silent)

    def flags(self) -> str:
        """Return the flags of ``evaluate`` for what a trace cannot say, means of what varies."""
        found = {"--delay": self._mean(self.delay_ms), "--queue": self.queue_packets}
        found["--loss"] = self._mean(self.loss)
        return "".join(f" {flag} {value:.6g}" for flag, value in found.items() if value is not None)

    def unsaid(self) -> str:
        """Return what neither a trace nor flags can say; empty: nothing."""
        varies = [
            f"{name} from {column.min():g} to {column.max():g}"
            for name, column in (("delay_ms", self.delay_ms), ("loss", self.loss))
            if column is not None and np.ptp(column) > 0
        ]
        return ", ".join(varies + [f"jitter_ms up to {self.jitter_ms:g}"] * (self.jitter_ms > 0))

    def _mean(self, column: FloatArray | None) -> float | None:
        return None if column is None else float(np.average(column, weights=self.lengths))


def _text(data: bytes) -> str:
    """Decode UTF-8, or what a mark or bytes of 0 at the beginning say."""
    text = data.decode(json.detect_encoding(data), "replace")
    if "\0" in text or "\ufffd" in text:
        raise ValueError("it has bytes that are not text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _csv(data: bytes, columns: str = "", units: Units = (None, None)) -> ThroughputLog:
    lengths, mbps, notes = read_csv(_text(data), columns, units)
    return ThroughputLog(lengths, mbps, notes=notes)


def _fcc(data: bytes) -> ThroughputLog:
    """Read rows of ``curr_webget.csv``, of one unit and target."""
    rows = list(csv.DictReader(_text(data).splitlines()))
    pairs = {(row["unit_id"], row["target"]) for row in rows}
    if len(pairs) > 1:
        raise ValueError(f"{len(pairs)} pairs of unit_id and target; cut out the lines of one")
    received = [
        number_in(row["bytes_sec"] or "", k, "bytes_sec", 0) for k, row in enumerate(rows, 2)
    ]
    return ThroughputLog(np.full(len(rows), _FCC_S), np.array(received) * 8e-6)


def _hsdpa(data: bytes) -> ThroughputLog:
    """Read Unix time, ms since the start, latitude, longitude, bytes, ms that they took."""
    lines = [(k, line.split()) for k, line in enumerate(_text(data).split("\n"), 1) if line.strip()]
    received, took, since = list[float](), list[float](), list[float]()
    for number, words in lines:
        if len(words) != 6:
            raise ValueError(f"row {number} has {len(words)} columns")
        received.append(number_in(words[4], number, "a number of bytes", 0))
        took.append(number_in(words[5], number, "a time", 1 if received[-1] else 0))
        since.append(number_in(words[1], number, "a later time", max([*since[-1:], 0])))
    some = np.array(took) > 0
    lengths = np.array(took)[some] * 1e-3
    left = 1e-3 * (since[-1] - since[0]) - lengths.sum()
    notes = (f"{left:g} s between rows are left out",) * bool(left > 0.1 * lengths.sum())
    return ThroughputLog(lengths, np.array(received)[some] * 8e-6 / lengths, notes=notes)


def _objects(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield a file's JSON objects in turn; of equal keys ``sum`` none hides another."""

    def merged(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        sums = [value for key, value in pairs if key == "sum"]
        return found | {"sum": sums[0], "sum_bidir_reverse": sums[1]} if sums[1:] else found

    text = _text(_NO_JSON.sub(b" null", data)).strip()
    decoder, at = json.JSONDecoder(object_pairs_hook=merged), 0
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        if not isinstance(found, dict):
            raise ValueError(f"it has {str(found)[:40]!r} where an object is expected")
        yield found


def _only(data: bytes) -> dict[str, Any]:
    """Return the one JSON object of a file; raises ValueError if there is more."""
    found, *others = _objects(data)
    if others:
        raise ValueError(f"it has {1 + len(others)} traces; keep one")
    return found


def _iperf3(data: bytes) -> ThroughputLog:
    """Read what ``iperf3 -J`` or ``--json-stream`` wrote of what was received, tests in turn."""
    tests: list[dict[str, Any]] = []
    for found in _objects(data):
        event, what = found.get("event"), found.get("data")
        streamed = tests[-1] if tests and "stream" in tests[-1] else None
        if event is None:  # a stream may end with all of it anew
            if streamed is None or streamed["intervals"] != found.get("intervals"):
                tests.append(found)
        elif event == "start" or streamed is None:
            start = what if event == "start" else {}
            tests.append({"stream": True, "intervals": [], "start": start})
        if event == "interval":
            tests[-1]["intervals"].append(what)
        elif event in ("error", "server_output_json"):
            tests[-1][event] = what
    kept: list[tuple[float, float]] = []
    notes = []
    for number, test in enumerate(tests, 1):
        if error := test.get("error"):
            notes.append(f"iperf3 says: {error}")
        received = _received(test)
        if received is None:
            raise ValueError(f"test {number} of {len(tests)} {_SENDERS}")
        kept += received
    if not kept:
        raise ValueError(notes[0] if notes else "it has no intervals")
    lengths, rates = np.array(kept).T
    return ThroughputLog(lengths, rates * 1e-6, notes=tuple(notes))


def _received(test: dict[str, Any]) -> list[tuple[float, float]] | None:
    """Return seconds and bit/s of what a test received, less what ``-O`` omits; None: it sent."""
    found, sent, start = [], False, test.get("start") or {}
    # An old iperf3 does not say who sends: a client does without -R, a server with it.
    reverse = (start.get("test_start") or {}).get("reverse")
    is_server, is_client = "accepted_connection" in start, "connecting_to" in start
    sends = reverse is not None and (is_server or is_client) and bool(reverse) == is_server
    for interval in test["intervals"] if "error" not in test else test.get("intervals", []):
        sums = [interval[key] for key in ("sum", "sum_bidir_reverse") if key in interval]
        if len(sums) > 1 and not all("sender" in each for each in sums):
            raise ValueError("it does not say which direction is sent; use -R, not --bidir")
        received = [each for each in sums if not each.get("sender", sends)]
        sent |= not received
        found += [each for each in received if not each.get("omitted")]
    if sent:
        return _received(test["server_output_json"]) if "server_output_json" in test else None
    pairs = [(_number(each, "seconds"), _number(each, "bits_per_second")) for each in found]
    return [pair for pair in pairs if pair != (0.0, 0.0)]


def _number(found: dict[str, Any], key: str) -> float:
    if not isinstance(found[key], int | float):
        raise ValueError(f"{key} is {found[key]!r}; expected a number")
    return float(found[key])


def _genet(data: bytes) -> ThroughputLog:
    """Read s, Mbit/s, one-way ms, loss and packets; the last time is the end (Genet's `Trace`)."""
    found = _only(data)
    times, rates = (np.array(found[key], float) for key in ("timestamps", "bandwidths"))
    if len(rates) not in (1, len(times), len(times) - 1):
        raise ValueError(f"it has {len(times)} timestamps and {len(rates)} bandwidths")
    lengths = np.diff(np.append(0.0, times[len(times) > 1 :]))

    def held(column: Iterable[float]) -> FloatArray:  # the last value holds on
        numbers = np.array([float(value) for value in column])
        return np.pad(numbers, (0, len(lengths)), "edge")[: len(lengths)]

    loss, delays = found.get("loss"), found.get("delays")
    return ThroughputLog(
        lengths,
        held(rates),
        held(delays) if delays else None,
        None if loss is None else held([loss]),
        None if found.get("queue") is None else round(found["queue"]),
        float(found.get("delay_noise") or 0),
    )


def _alphartc(data: bytes) -> ThroughputLog:
    """Read ms, kbit/s, loss and round trips, ms, of the uplink, or of a downlink alone."""
    found = _only(data)
    ways = {way: (found.get(way) or {}).get("trace_pattern") for way in ("uplink", "downlink")}
    way, rows = next(((way, rows) for way, rows in ways.items() if rows), ("", []))
    if not rows:
        raise ValueError("neither uplink nor downlink has a trace_pattern")

    def column(key: str) -> FloatArray | None:
        return np.array([float(row[key]) for row in rows]) if any(key in r for r in rows) else None

    rtt, jitter = column("rtt"), column("jitter")
    return ThroughputLog(
        np.array([row["duration"] for row in rows], float) * 1e-3,
        np.array([row["capacity"] for row in rows], float) * 1e-3,
        None if rtt is None else rtt / 2,
        column("loss"),
        jitter_ms=0.0 if jitter is None else float(jitter.max()),
        notes=(f"of two directions the {way} is taken",) if all(ways.values()) else (),
    )


KINDS: dict[str, tuple[Callable[..., ThroughputLog], str]] = {
    "csv": (_csv, "rows of a time (as 5.5, or 2019-11-28 07:27:58) and a rate (as 5.5)"),
    "fcc": (_fcc, "lines of FCC's curr_webget.csv with its head, of one unit_id and target"),
    "hsdpa": (_hsdpa, "lines of six numbers: Unix time, ms, latitude, longitude, bytes, ms"),
    "iperf3": (_iperf3, "what iperf3 -J writes"),
    "genet": (_genet, "Genet's JSON: timestamps, bandwidths, delays, loss, queue"),
    "alphartc": (_alphartc, "AlphaRTC's JSON: rows of duration and capacity in a trace_pattern"),
}


def read_throughput(path: str, kind: str, columns: str = "", unit: str = "") -> ThroughputLog:
    """Return what a log of one of `KINDS` says of a link; for a CSV see `distrlcc.sim.csv_log`."""
    if kind != "csv" and (columns or unit):
        raise ConfigError(f"--columns and --unit are for --from csv; {kind} has its own")
    parse, expected = KINDS[kind]
    said = (columns, given_units(unit)) if kind == "csv" else ()
    data = traces.read_file(path, traces.MAX_LOG_BYTES)
    other, remedy = traces.looks_like(data, path)
    if not remedy or other == kind == "csv":
        remedy = f"expected {expected}"
    remedy = f"; {remedy}" if other != kind or kind == "csv" else ""
    with (
        reading(TraceError, f"{path}: cannot be read as {kind}", remedy),
        np.errstate(all="ignore"),
    ):
        if not data.strip():
            raise ValueError("it is empty")
        try:
            log = parse(data, *said)
        except (AttributeError, TypeError):  # of JSON whose parts are of other types
            raise ValueError(f"its parts are of other types; expected {expected}") from None
        lengths, mbps = log.lengths, log.mbps
        if not len(mbps):
            raise ValueError("it has no intervals")
        known = len(lengths) == len(mbps) and np.isfinite([lengths, mbps]).all()
        if not (known and (lengths > 0).all() and (mbps >= 0).all() and mbps.any()):
            raise ValueError("times must increase; rates must be 0 or more, and not all of them 0")
        if (high := mbps > MAX_RATE_MBPS).any():
            raise ValueError(
                f"interval {high.argmax() + 1} has {mbps[high.argmax()]:g} Mbit/s: no link has so "
                f"high a rate; expected {MAX_RATE_MBPS:.0f} Mbit/s at most"
            )
        if log.delay_ms is not None and not (log.delay_ms >= 0).all():
            raise ValueError("a delay is not a number above 0")
        if log.loss is not None and not ((log.loss >= 0) & (log.loss <= 1)).all():
            raise ValueError("a loss is not between 0 and 1")
        if lengths @ mbps * traces.PACKETS_PER_MBIT < 1:
            raise ValueError("it carries less than one packet in all")
        seconds = lengths.sum()
        if not _LEAST_S <= seconds <= 3600 * _MOST_HOURS:
            raise ValueError(
                f"it lasts {seconds:.3g} s, {seconds / 3600:.1f} hours; expected {_LEAST_S} s to "
                f"{_MOST_HOURS} hours: cut out a part, or are its times of another unit?"
            )
    return log
