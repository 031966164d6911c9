"""A recipe's results, JSON beside its policy: its runs' scores, and whether others agree."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from distrlcc.config import from_dict
from distrlcc.errors import DatasetError, reading
from distrlcc.evaluation.scorecard import known_metric
from distrlcc.files import write_atomically
from distrlcc.policy.policy_file import SHIPPED

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5% points of Student's t with 1 to 9 degrees of freedom."""
DIGITS = 2  # differences of so many units in the last digit that is shown are none
TOLERATED = 0.1  # share of scores that may differ: of 95% intervals one in twenty does by chance


@dataclass(frozen=True)
class ResultRow:
    """Scores of a recipe's training runs, one for each seed."""

    recipe: str
    version: str  # of distrlcc
    steps: int  # environment steps of each run
    seeds: tuple[int, ...]
    cpu_minutes: tuple[float, ...]
    shipped: int  # seed with the best score on validation links; it ships, if none is `refined`
    scores: dict[str, dict[str, tuple[float, ...]]]  # by suite and metric, one for each seed
    peers: dict[str, dict[str, dict[str, float]]]
    """Scores of schemes on the same links, by suite, scheme and metric."""
    refined: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scores of what is shipped, where that is no run's policy but was trained for longer."""

    def of_shipped(self, suite: str, metric: str) -> float:
        """Return a score of the policy that is shipped."""
        if self.refined:
            return self.refined[suite][metric]
        return self.scores[suite][metric][self.seeds.index(self.shipped)]

    def filled(self, text: str) -> str:
        """Return a text with the scores that it names, as ``{random[power]:.3f}``."""
        suites = {k: {m: self.of_shipped(k, m) for m in found} for k, found in self.scores.items()}
        return text.format(**suites, peers=self.peers)

    def powers(self) -> dict[str, float]:
        """Return the power of the policy that is shipped, by suite."""
        suites = [suite for suite, found in self.scores.items() if "power" in found]
        return {suite: self.of_shipped(suite, "power") for suite in suites}

    def mean(self, suite: str, metric: str) -> float:
        """Return a score's mean over the runs."""
        return fmean(self.scores[suite][metric])

    def half_width(self, suite: str, metric: str, others: int = 0) -> float:
        """Return half of the mean's 95% interval, or of its difference to that of others' runs."""
        values = self.scores[suite][metric]
        count = len(values)
        if count < 2 or not all(map(math.isfinite, values)):
            return math.nan
        student = _STUDENT[min(count - 2, len(_STUDENT) - 1)]
        return student * stdev(values) * math.sqrt(1 / count + (1 / others if others else 0.0))

    def differences(self, other: "ResultRow") -> list[str]:
        """Return a line for each score in which another row's runs do not agree with these.

        They agree if the difference of the means lies within its 95% interval, by the spread of
        these runs, or below `DIGITS` units of the last digit shown. One run has no spread: then the
        other's counts.
        """
        lines = []
        for label, metric in self.measured():
            if metric not in other.scores.get(label, {}):
                lines.append(f"{label}, {metric}: it was not measured")
                continue
            ours, theirs = self.mean(label, metric), other.mean(label, metric)
            if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
                continue
            shown = known_metric(metric, self.scores[label])
            least = DIGITS * 10.0**-shown.digits / shown.scale
            half = self.half_width(label, metric, len(other.seeds))
            if len(self.seeds) == 1:
                half = other.half_width(label, metric, 1)
            bound = least if math.isnan(half) else max(half, least)
            if not abs(ours - theirs) <= bound:
                lines.append(f"{label}, {metric}: {theirs:.4f}, expected {ours:.4f} ± {bound:.4f}")
        return lines

    def measured(self) -> list[tuple[str, str]]:
        """Return the suite and the metric of each score."""
        return [(suite, metric) for suite, metrics in self.scores.items() for metric in metrics]

    @property
    def tolerated(self) -> int:
        """How many scores of another row may differ for it to be called reproduced."""
        return math.ceil(TOLERATED * len(self.measured()))

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        text = json.dumps(plain(asdict(self), 5), indent=1, allow_nan=False)
        write_atomically(path, f"{text}\n".encode())

    @classmethod
    def load(cls, path: Path) -> "ResultRow":
        """Read what `save` wrote; raises DatasetError."""
        return read_result(path, cls, "row of results", "write it again")


def read_result(path: Path, kind: type[_T], what: str, remedy: str) -> _T:
    """Read a data class from JSON; raise `DatasetError` where that is missing or damaged."""
    with reading(DatasetError, f"{path}: no {what}", f"; {remedy}"):
        return from_dict(kind, _numbers(msgspec.json.decode(path.read_bytes())), source=path.name)


def _numbers(value: Any) -> Any:
    """Return what `plain` made with its numbers: JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def plain(value: Any, digits: int = 17) -> Any:
    """Return a value as JSON has it: what is not finite as text, other floats of some digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: plain(item, digits) for key, item in value.items()}
    return [plain(item, digits) for item in value] if isinstance(value, list | tuple) else value


def shipped_rows() -> dict[str, ResultRow]:
    """Return the rows that come with the package, by recipe."""
    return {path.stem: ResultRow.load(path) for path in sorted(SHIPPED.glob("*.json"))}
