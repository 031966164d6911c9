"""Scores: a scheme's on links and seeds, time series, the metrics' names.

A run counts unless it failed, its sender was late, too little was acknowledged, its scheme broke,
or a score is not a number. A run that does not count is void: it is in no mean and no ranking.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from distrlcc.types import FloatArray

BUCKET_S = 0.1
MAX_BUCKETS = 150  # long series have longer buckets, so that their lines can be told apart


@dataclass(frozen=True, slots=True)
class Metric:
    """How a metric is named, written and judged."""

    key: str  # key in `SchemeScores.figures` and in JSON
    label: str  # short name for the head of a table
    digits: int  # digits after the point as shown
    definition: str  # one sentence for people
    unit: str = ""  # unit as shown; empty for plain numbers
    better: Literal["higher", "lower"] | None = None  # which way is better; None: neither
    head: str = ""  # head in the ranked table, where room is scarce; empty: it is not shown there
    target: float = math.nan  # best value of what may be too low and too high; NaN: none

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def scale(self) -> float:
        """Factor from the stored value to the shown one: shares are shown as percentages."""
        return 100.0 if self.unit == "%" else 1.0

    def text(self, value: float) -> str:
        """Return a value as shown: a dash if undefined, "never" if infinite."""
        if math.isnan(value):
            return "-"
        return "never" if math.isinf(value) else f"{value * self.scale:z.{self.digits}f}"

    def tails(self, values: FloatArray) -> tuple[float, float]:
        """Return values' tenth percentile ``[L]``, worst first, and the worst; NaN: no such one."""
        found = values[~np.isnan(values)].tolist()
        if len(found) < 2 or (self.better is None and math.isnan(self.target)):
            return math.nan, math.nan
        sign = -1 if self.better == "higher" else 1
        aim = self.target
        found.sort(key=lambda v: sign * v if math.isnan(aim) else abs(v - aim), reverse=True)
        return found[len(found) // 10], found[0]

    def describe(self) -> dict[str, str | None]:
        """Return the unit of the stored value, which way is better, and the definition."""
        unit = "share" if self.unit == "%" else self.unit
        return {"unit": unit, "better": self.better, "definition": self.definition}


_DEFINED: dict[str, tuple[Metric, ...]] = msgspec.toml.decode(
    resources.files("distrlcc.evaluation").joinpath("metrics.toml").read_bytes(),
    type=dict[str, tuple[Metric, ...]],
)
METRICS = _DEFINED["flow"]  # metrics of every world, in the order in which they are shown
SENDER_METRICS = _DEFINED["sender"]  # what senders of real packets report, shown after `METRICS`
FAIRNESS_METRICS = _DEFINED["shared"]  # metrics of shared links: see `distrlcc.evaluation.fairness`
RECOVERY_METRICS = _DEFINED["recovery"]  # of the time after changes: `distrlcc.evaluation.recovery`
TABLE_METRICS = tuple(m for m in METRICS if m.head)  # metrics of the ranked table


def metric(key: str) -> Metric:
    """Return the metric of a key of :data:`METRICS` or :data:`SENDER_METRICS`."""
    return next(m for m in METRICS + SENDER_METRICS if m.key == key)


DISPLAY_NAMES = {"bbr": "BBRv1"}  # a scheme's name for people, where it is not that of commands


def shown(scheme: str) -> str:
    """Return a scheme's name as shown."""
    return DISPLAY_NAMES.get(scheme, scheme)


@dataclass(frozen=True)
class VoidRun:
    """A run that does not count."""

    scheme: str
    scenario: str  # name of the link
    run: int  # which of the link's runs, from 0
    reason: str
    figures: dict[str, float] = field(default_factory=dict)
    """Figures measured all the same, where there is a number; empty where the run failed."""

    def __str__(self) -> str:
        which = f", run {self.run}" if self.run else ""
        return f"{shown(self.scheme)} on {self.scenario}{which} does not count: {self.reason}"


COUNTED = ("throughput_mbps", "utilisation", "power")  # scores that each run that counts has
NO_NUMBER = "a score is not a number"


@dataclass(frozen=True)
class SchemeScores:
    """One scheme's scores on L links with S seeds each."""

    scheme: str  # name of the scheme or policy
    links: tuple[str, ...]  # names of the L links
    figures: dict[str, FloatArray]
    """``[L, S]`` by the keys of :data:`METRICS`, and of :data:`SENDER_METRICS` for real packets.

    A delay or RTT is NaN where nothing was delivered; everything is NaN where a run failed. Shares
    are 0 to 1.
    """
    learned: bool = False  # whether it is a policy from a file: drawn with emphasis
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)
    """Why a run does not count, by the places of its link and seed."""
    digests: tuple[str, ...] = ()
    """Of each link's conditions, as `distrlcc.sim.suites.digest` has it; empty: unknown."""

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Which runs count, ``[L, S]``."""
        scores = [self.figures[key] for key in COUNTED if key in self.figures]
        found = np.asarray(np.isfinite(scores).all(axis=0))
        for place in self.reasons:
            found[place] = False
        return found

    @property
    def has_run(self) -> NDArray[np.bool_]:
        """Whether a run of each link counts, ``[L]``."""
        return np.asarray(self.ran.any(axis=1))

    def void(self) -> tuple[VoidRun, ...]:
        """Return the runs that do not count."""
        found = []
        for k, run in np.argwhere(~self.ran).tolist():
            reason = self.reasons.get((k, run), NO_NUMBER)
            values = {key: float(each[k, run]) for key, each in self.figures.items()}
            figures = {k: float(f"{v:.6g}") for k, v in values.items() if math.isfinite(v)}
            found.append(VoidRun(self.scheme, self.links[k], run, reason, figures))
        return tuple(found)

    def values(self, metrics: Sequence[Metric]) -> FloatArray:
        """Return metrics as ``[M, L, S]``; NaN if undefined, or if a run does not count."""
        ran = self.ran
        return np.stack([np.where(ran, self.figures.get(m.key, np.nan), np.nan) for m in metrics])


@dataclass(frozen=True)
class Series:
    """One scheme on one link over time, in B buckets; every array is float64 ``[B]``."""

    scheme: str
    link: str
    edges_s: FloatArray  # of the buckets, [B + 1]
    capacity_mbps: FloatArray
    rate_mbps: FloatArray
    queueing_delay_ms: FloatArray  # mean over the bucket's packets; NaN where nothing was delivered
    queue_packets: FloatArray  # queue length
    learned: bool = False  # whether it is a policy from a file: drawn with emphasis
    cwnd_packets: FloatArray | None = None
    """Window; None where packets are real, whose senders say it."""
    others_mbps: FloatArray | None = None  # what the link's other flows deliver; None as above
    sender: dict[str, FloatArray] | None = None
    """The sender's report, by the keys of :data:`SENDER_METRICS`; None in the simulator."""

    @property
    def time_s(self) -> FloatArray:
        """Middle of each bucket."""
        return np.asarray(self.edges_s[1:] + self.edges_s[:-1]) / 2


def share_of(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return shares; NaN where the whole is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1e-9), np.nan)


def defined_mean(values: FloatArray) -> float:
    """Return the mean of the values that are defined; NaN where none is."""
    return float(defined_means(values.ravel()))


def defined_means(values: FloatArray) -> FloatArray:
    """Mean over the last axis of what is defined; NaN, without a warning, where nothing is."""
    defined = np.isfinite(values)
    counts = defined.sum(axis=-1)
    sums = np.where(defined, values, 0.0).sum(axis=-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def bucket_edges(seconds: float) -> FloatArray:
    """Return the edges of a series' buckets ``[B + 1]``, s; the last one may be shorter."""
    bucket = max(BUCKET_S, seconds / MAX_BUCKETS)
    return np.append(np.arange(0.0, seconds - 1e-9, bucket), seconds)


def bucket_sums(edges: FloatArray, ends: FloatArray, values: FloatArray) -> FloatArray:
    """Sum T steps' values over B buckets with ``edges``, s ``[B + 1]``, spread evenly over them."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.diff(np.interp(edges, np.concatenate([[0.0], ends]), sums))
