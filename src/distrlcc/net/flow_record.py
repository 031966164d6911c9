"""A flow's record: its steps and totals, its RTTs, and how late its steps were."""

import json
import math
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np

from distrlcc.errors import writing
from distrlcc.types import FloatArray

LATE_NS = 1_000_000  # a step that begins this much after its time is late, ns
MOST_LATE = 0.05  # a larger share of late steps marks an episode
_BINS = 2500
_PER_E_FOLD = 100.0  # bins are 1% wide, from 1 us to 20 hours: memory is bounded


class Step(NamedTuple):
    """A step's figures, for plots and live lines."""

    time: float  # its end, s since the start
    duration: float
    acked: float
    lost: float  # net: less those of before that came after all
    rtt: float  # mean of its samples, s; 0 without
    cwnd: float
    inflight: float
    smoothed_rtt: float  # RFC 6298's at the end of the step, s; 0 before the first sample
    guarded: float  # 1 where a policy's guard held a lower window than it chose


_STEP = struct.Struct(f"{len(Step._fields)}d")
_PIECE = 4096  # steps that are read at once


@dataclass
class Sent:
    """How a flow went."""

    seconds: float = 0.0
    packets: int = 0
    acked: int = 0
    lost: int = 0  # found lost, and not acknowledged after all
    spurious: int = 0  # found lost, and acknowledged after all: others overtook them
    timeouts: int = 0
    bytes: int = 0  # acknowledged, with headers as on an emulated link: 4 more than on a real one
    min_rtt_ms: float = float("nan")
    mean_rtt_ms: float = float("nan")
    p95_rtt_ms: float = float("nan")
    steps: int = 0
    late_share: float = 0.0  # share of steps that began more than 1 ms late
    lateness_p50_ms: float = 0.0
    lateness_p99_ms: float = 0.0
    ignored: int = 0  # datagrams that were malformed, stray or forged
    unsent: int = 0  # datagrams that this machine had no room for
    failure: str = ""  # why it ended early, one line; empty if all went well

    @property
    def mbps(self) -> float:
        """Throughput, Mbit/s."""
        return self.bytes * 8e-6 / self.seconds if self.seconds else 0.0

    @property
    def loss(self) -> float:
        """Share lost of the packets whose fate is known; NaN: of none it is."""
        known = self.lost + self.acked
        return self.lost / known if known else math.nan

    @property
    def late(self) -> bool:
        """Whether too many steps were late for the figures to count."""
        return self.late_share > MOST_LATE


class Ticker:
    """The clock of a sender's steps, and how late each was; a missed one is not made up for."""

    def __init__(self, *, now: int, step: int) -> None:
        self.due = now + step  # when the present step ends, ns
        self.missed = 0  # steps that were skipped, as their time had passed
        self.count = 0  # steps that have ended
        self._late, self._lateness = 0, TimeRecord()

    def tick(self, *, now: int, step: int) -> None:
        """End the present step at ``now``, at or after `due`; the next one lasts ``step`` ns."""
        late = now - self.due
        self.count += 1
        self._late += late > LATE_NS
        self._lateness.add(late)
        skipped = late // step
        self.missed += skipped
        self.due += (skipped + 1) * step

    def late_share(self) -> float:
        """Return the share of steps that were late or missed."""
        return (self._late + self.missed) / max(self.count + self.missed, 1)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the steps' lateness, ms; 0 without steps."""
        return self._lateness.percentile_ms(percent) if self.count else 0.0


class StepLog:
    """A flow's steps in a file without a name, so that they take no memory; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(self._folder):
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115  (`__exit__` closes it)

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a full disk, which was told
            self._file.close()

    def add(self, step: Step) -> None:
        """Keep a step, see `__init__`."""
        with writing(self._folder):
            self._file.write(_STEP.pack(*step))

    def steps(self) -> Iterator[FloatArray]:
        """Yield the steps in pieces, ``[S, F]``, with F the fields of `Step`."""
        with writing(self._folder):
            self._file.seek(0)
        while piece := self._file.read(_STEP.size * _PIECE):
            yield np.frombuffer(piece).reshape(-1, len(Step._fields))

    def whole(self) -> FloatArray:
        """Return all steps, ``[S, F]``."""
        return np.concatenate([np.zeros((0, len(Step._fields))), *self.steps()])

    def json(self) -> Iterator[str]:
        """Yield the text of an object with a list of each field, in pieces."""
        for place, name in enumerate(Step._fields):
            yield f'{", " if place else "{"}"{name}": ['
            for number, piece in enumerate(self.steps()):
                values = json.dumps(piece[:, place].round(6).tolist())
                yield (", " if number else "") + values[1:-1]
            yield "]"
        yield "}"


class TimeRecord:
    """Times, such as the RTT samples of a flow, counted by size."""

    def __init__(self) -> None:
        self._counts, self._count, self._sum = [0] * _BINS, 0, 0

    def add(self, time: int) -> None:
        """Count a sample, ns."""
        self._counts[int(_PER_E_FOLD * math.log(max(time * 1e-3, 1.0)))] += 1
        self._count += 1
        self._sum += time

    def mean_ms(self) -> float:
        """Return the mean, ms; not a number without samples."""
        return self._sum / self._count * 1e-6 if self._count else math.nan

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the times, ms, to 1%; not a number without samples."""
        if not self._count:
            return math.nan
        place = np.searchsorted(np.cumsum(self._counts), percent / 100.0 * self._count)
        return math.exp((int(place) + 0.5) / _PER_E_FOLD) * 1e-3
