"""Traces of a link's opportunities in mahimahi's format, read from files or generated.

A trace is named by a path, or by a generator: ``cellular:SEED``, ``poisson:MBPS:SEED`` and
``constant:MBPS``, a rate that is served in whole milliseconds as mahimahi serves it. One line of a
file is a time in ms at which the link may send one packet of `PACKET_BYTES`. Equal lines are
several opportunities. After the last line the trace wraps.
"""

import codecs
import difflib
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import TraceError, reading
from distrlcc.types import PACKET_BYTES

SECONDS = 60  # period of a generated trace
_TICK_MS = 20
GENERATORS = dict(cellular="cellular:SEED", poisson="poisson:MBPS:SEED", constant="constant:MBPS")
PACKETS_PER_MBIT = 1e6 / (PACKET_BYTES * 8)  # opportunities that carry a Mbit


def generate(spec: str) -> NDArray[np.int64] | None:
    """Generate a generator's opportunities, ms; None of a file's name; raises TraceError."""
    kind, *parameters = spec.split(":")
    try:
        if kind == "cellular" and len(parameters) == 1:
            return _cellular(int(parameters[0]))
        if kind == "poisson" and len(parameters) == 2:
            rng = np.random.default_rng([int(parameters[1]), 1])
            per_ms = _mbps(spec, parameters[0]) * PACKETS_PER_MBIT / 1000
            return opportunities(rng.poisson(per_ms, SECONDS * 1000))
        if kind == "constant" and len(parameters) == 1:
            _mbps(spec, parameters[0])
            return constant_times(Fraction(parameters[0]) * 1000 / (8 * PACKET_BYTES))
    except ValueError:
        raise TraceError(f"{spec}: expected {GENERATORS[kind]}") from None
    base = os.path.basename(kind)  # beside a suite's file it has a folder before it
    near = difflib.get_close_matches(base.casefold(), GENERATORS, 1) if parameters else []
    if near and not os.path.exists(expanded(spec)):
        hint = "" if near[0] == base else f"did you mean {':'.join([near[0], *parameters])}? "
        raise TraceError(f"{spec}: {hint}expected {GENERATORS[near[0]]}, or a file")
    return None


def _mbps(spec: str, text: str) -> float:
    mbps = float(text)
    if not 0.01 <= mbps <= 10_000:
        raise TraceError(f"{spec}: {mbps} Mbit/s is outside 0.01 to 10000")
    return mbps


def _cellular(seed: int) -> NDArray[np.int64]:
    """Generate a cellular-like link of 0.5 to 30 Mbit/s on average; opportunities in ms."""
    rng = np.random.default_rng([seed, 2])
    ticks = SECONDS * 1000 // _TICK_MS
    mean = rng.uniform(np.log(0.8), np.log(25.0))
    spread = rng.uniform(0.25, 0.8)
    pull = 1 - np.exp(-_TICK_MS / 1000 / rng.uniform(0.5, 8.0))
    noise = rng.normal(0.0, spread * np.sqrt(pull * (2 - pull)), ticks)
    outages = rng.uniform(0.0, 0.06)
    starts = rng.random(ticks) < outages * _TICK_MS / 1000
    lengths = rng.exponential(rng.uniform(0.1, 1.0), ticks)
    # In Python's own floats: NumPy's, one by one, take ten times as long.
    log_rate, mean, pull = float(mean + spread * rng.normal()), float(mean), float(pull)
    until, log_rates = 0.0, []
    columns = (np.arange(ticks) * _TICK_MS / 1000, noise, starts, lengths)
    for time, change, start, length in zip(*(column.tolist() for column in columns), strict=True):
        log_rate += pull * (mean - log_rate) + change
        if start:
            until = time + length
        log_rates.append(-np.inf if time < until else log_rate)
    per_ms = np.repeat(np.exp(log_rates) * PACKETS_PER_MBIT / 1000, _TICK_MS)
    return opportunities(rng.poisson(per_ms))


def opportunities(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the times, ms, of so many in each; the last is the period, as a file's last line."""
    times = np.repeat(np.arange(1, len(counts) + 1), counts)
    if len(times) == 0 or times[-1] != len(counts):
        times = np.append(times, len(counts))
    return times.astype(np.int64)


_LONGEST_MS = 20_000
_MOST_LINES = 2_000_000


def constant_times(packets_per_ms: Fraction, earned: Fraction = Fraction(0)) -> NDArray[np.int64]:
    """Return the opportunities of a rate above 0 over one period, ms, not decreasing.

    The k-th stands in the first millisecond by whose end k packets' time has passed; one packet per
    ms is the trace ``1``. The rate is exact where a period of at most 20 s holds it, else to 1e-7.
    Of the first packet so much has passed as ``earned``, less than what a ms carries.
    """
    rate = packets_per_ms.limit_denominator(_LONGEST_MS)
    # A very slow link has a long period; a very fast one a short one, for memory's sake.
    if rate == 0 or abs(rate / packets_per_ms - 1) > Fraction(1, 10**7):
        rate = 1 / (1 / packets_per_ms).limit_denominator(_LONGEST_MS)
    if rate.numerator > _MOST_LINES:
        rate = packets_per_ms.limit_denominator(max(int(_MOST_LINES / packets_per_ms), 1))
    count = 10**5 * np.arange(1, rate.numerator + 1, dtype=np.int64) - int(10**5 * earned)
    return -(-count * rate.denominator // (rate.numerator * 10**5))


MAX_LOG_BYTES = 64 * 1024 * 1024
MAX_MS = 10**10
_DIGITS = b"0123456789\n"
_NO_TIME = re.compile(rb"^[ \t]*+(?!0*\d{1,18}[ \t]*$)[^\n]+", re.MULTILINE)
"""A line that is neither blank nor one number of at most 18 digits."""
_EXPECTED = "expected one whole number of milliseconds per line, never decreasing, the last above 0"
_PIECE = 1 << 20
_FORMS = {
    rb"\x1f\x8b": "it is compressed: gunzip it first",
    rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd": "it is compressed: bunzip2, unxz or unzstd it first",
    rb"PK\x03\x04": "it is a zip archive or a spreadsheet: unzip it, or save the sheet as CSV",
    rb"(?s:\xd4\xc3\xb2|\xa1\xb2.[\xd4M]|M<\xb2\xa1|\n\r\r\n)": (
        "it is a capture of packets: write its bytes per interval to a CSV (tshark -z io,stat,0.1) "
        "for trace --from csv"
    ),
    rb"\x89PNG|\xff\xd8\xff|GIF8|%PDF": "it is an image: write what it shows as text",
    rb"\x7fELF|\x89HDF|\x93NUMPY|PAR1": "it is binary: write what it holds as text",
    rb"\s*[\[{](?s:.*)\"trace_pattern\"": "alphartc",
    rb"\s*[\[{](?s:.*)\"(timestamps|bandwidths)\"": "genet",
    rb"\s*[\[{](?s:.*)\"(intervals|event|iperf|error)\b": "iperf3",
    rb"\s*[\[{]": "it is JSON of no known kind: distrlcc trace --help names those that it reads",
    rb"# mahimahi|# (queue|base timestamp|init timestamp):|\d+ [+#-] \d+": (
        "it is a log of mm-link, which distrlcc check link compares with a trace"
    ),
    rb".*\bbytes_sec\b": "fcc",
    rb"(-?[\d.]+[ \t]+){5}-?[\d.]+[ \t]*$": "hsdpa",
    rb"Connecting to host|-{20,}\n(Server listening|Accepted)": "it is no JSON: run iperf3 with -J",
    rb"(.*\n)*?(\[\[?(link|scenarios)\]\]?|name|duration_s) *($|=)": (
        "it is a scenario: --suite takes it as NAME.toml"
    ),
    rb"(.*\n)*?[ \t\"']*[-+.]?\d[^\n,;\t ]*[,;\t ]+.*\d": "csv",
}
"""How files of other forms begin, and what they are: a kind of log, or what to do with them."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A link's opportunities over one period."""

    name: str
    times_ns: NDArray[np.int64]  # when it may send a packet, ns, not decreasing; last: the period

    @property
    def period_ns(self) -> int:
        """Length of one period, ns."""
        return int(self.times_ns[-1])

    @property
    def mean_mbps(self) -> float:
        """Mean rate over one period, Mbit/s."""
        return float(len(self.times_ns) * PACKET_BYTES * 8e3 / self.period_ns)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the trace's file, many at a time."""
        for start in range(0, len(self.times_ns), _PIECE):
            times, counts = np.unique(self.times_ns[start : start + _PIECE], return_counts=True)
            pairs = zip((times // 1_000_000).tolist(), counts.tolist(), strict=True)
            yield b"".join(b"%d\n" % time * count for time, count in pairs)


def parse_trace(data: bytes, name: str) -> Trace:
    """Parse the bytes of a trace file; raises a TraceError that names the line."""
    data = data.removeprefix(codecs.BOM_UTF8)
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
    bad = _NO_TIME.search(text) if text.translate(None, _DIGITS) else None
    # Digits too many for a number are read as one above the limit.
    is_empty = bad is not None or not text or text.isspace()
    times = np.fromstring(b"" if is_empty else text, np.int64, sep=" ")
    bad = _NO_TIME.search(text) if len(times) and times.max() > MAX_MS else bad
    if bad is not None:
        line = text.count(b"\n", 0, bad.start()) + 1
        shown = bad[0][:40].decode("ascii", "backslashreplace")
        remedy = looks_like(data, name)[1] or _EXPECTED
        raise TraceError(f"{name}, line {line}: {shown!r} is not a time; {remedy}")
    if len(times) == 0:
        raise TraceError(f"{name}: the trace is empty; {_EXPECTED}")
    falls = np.flatnonzero(times[1:] < times[:-1])
    if len(falls):
        k = int(falls[0])
        raise TraceError(
            f"{name}, entry {k + 2}: time {times[k + 1]} comes after {times[k]}; {_EXPECTED}"
        )
    if times[-1] == 0:
        raise TraceError(f"{name}: the last time is 0, so the trace has no period; {_EXPECTED}")
    if times[-1] > MAX_MS:
        raise TraceError(f"{name}: the last time, {times[-1]} ms, is above the limit of {MAX_MS}")
    times *= 1_000_000
    return Trace(name, times)


def looks_like(data: bytes, name: str) -> tuple[str, str]:
    """Return the kind of log that a file's beginning is of, if read, and what to do with it."""
    head = data[:4096].removeprefix(codecs.BOM_UTF8)
    found = (what for form, what in _FORMS.items() if re.match(form, head, re.MULTILINE))
    what = next(found, "")
    if not what or " " in what:
        return "", what
    # Here, as the file's folder may not be the user's to write to.
    files = f"{shlex.quote(name)} --out {shlex.quote(f'{Path(name).name}.trace')}"
    return what, f"distrlcc trace --from {what} {files} makes a trace of it"


def require_memory(name: str, size: float) -> None:
    """Raise TraceError if there is less memory free than a trace needs, bytes, if known."""
    found: list[int] = []
    if size < _PIECE * 16:
        return
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(dict(line.split()[:2] for line in lines)["MemAvailable:"]))
    with suppress(OSError, ValueError):  # a container's
        most, used = (Path(f"/sys/fs/cgroup/memory.{n}").read_text() for n in ("max", "current"))
        found.append(int(most) - int(used))
    if found and size > min(found):
        raise TraceError(
            f"{name}: needs {size / 1e9:.3g} GB of memory and {min(found) / 1e9:.1f} GB are free; "
            "cut out a part"
        )


def load_trace(spec: str) -> Trace:
    """Read or generate the trace that a name stands for, as its file is now; raises TraceError."""
    version = None
    with suppress(OSError, ValueError):  # of a generated one there is no file
        status = expanded(spec).stat()
        version = status.st_mtime_ns, status.st_size, status.st_ino
    return kept_trace(spec, version)


@lru_cache(maxsize=4096)
def kept_trace(spec: str, version: tuple[int, ...] | None) -> Trace:
    """Return what `load_trace` does, of a file's version."""
    generated = generate(spec)
    if generated is not None:
        return Trace(spec, generated * 1_000_000)
    return parse_trace(read_file(spec), spec)


def expanded(name: str) -> Path:
    """Return a path, with the home for a ``~/`` at its beginning; no name makes it raise."""
    return Path(os.path.expanduser(name) if name.startswith("~/") else name)


def read_file(name: str, most: int | None = None) -> bytes:
    """Read a trace's file, or a log of ``most`` bytes; raises TraceError if it is no text."""
    with reading(TraceError, f"{name}: cannot be read", "; check the path"):
        path = expanded(name)
        size = path.stat().st_size
        if not path.is_file():
            what = "a folder" if path.is_dir() else "not a regular file"
            more = "; 'distrlcc evaluate --suite' takes a folder of traces" * path.is_dir()
            raise TraceError(f"{name}: is {what}; expected a file{more}")
        with path.open("rb") as file:
            head = file.read(4096)
            if b"\0" in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                log = "expected a log of throughput as text"
                remedy = looks_like(head, name)[1] or (_EXPECTED if most is None else log)
                raise TraceError(f"{name}: is not text; {remedy}")
            if most is not None and size > most:
                raise TraceError(
                    f"{name}: {size / 1e6:.0f} MB is above the limit of {most / 1e6:.0f} MB; "
                    "cut it into shorter ones"
                )
            require_memory(name, 4 * size)  # the text, and lines of five bytes or more as integers
            file.seek(0)
            return file.read()
