"""What recipes were meant to score, and how many of their runs do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from distrlcc.recipes.row import Row, known_metric

Rows = Mapping[str, Row]
SCHEMES = ("cubic", "bbr", "vegas", "copa")


@dataclass(frozen=True)
class Aim:
    """Bounds of a recipe's score."""

    recipe: str
    label: str
    """Of the links, as in rows of results."""
    metric: str
    low: float | Callable[[Rows], float] = -math.inf
    """Or how it comes from other rows."""
    high: float = math.inf
    note: str = ""
    """Where a bound comes from, if from other rows."""

    def least(self, rows: Rows) -> float:
        """Return the lower bound."""
        return self.low(rows) if callable(self.low) else self.low

    def reached(self, rows: Rows) -> int:
        """Return how many of the recipe's runs are within the bounds."""
        values = rows[self.recipe].scores[self.label][self.metric]
        return sum(self.least(rows) <= value <= self.high for value in values)


def _schemes_power(rows: Rows) -> float:
    return max(rows["best"].peers["cellular"][scheme]["power"] for scheme in SCHEMES)


def _near_oracle(rows: Rows) -> float:
    return 0.95 * rows["gail"].peers["random"]["oracle"]["power"]


def _near_best(rows: Rows) -> float:
    return rows["best"].mean("random", "utilisation") - 0.02


AIMS: tuple[Aim, ...] = (
    Aim("best", "random", "utilisation", low=0.985),
    Aim("best", "random", "queueing_delay_rtt", high=0.04),
    Aim("best", "random", "first_second_utilisation", low=0.85),
    Aim("best", "random", "excess_loss", high=0.002),
    Aim("best", "cellular", "power", low=_schemes_power, note="the schemes' greatest"),
    Aim("best", "dynamic, after changes", "recovery_rtts", high=5.0),
    *(
        aim
        for label in ("shared-2", "shared-4")
        for aim in (
            Aim("fair", label, "jain", low=0.98),
            Aim("fair", label, "utilisation", low=0.97),
            Aim("fair", label, "queueing_delay_rtt", high=0.1),
        )
    ),
    Aim("fair", "shared-rtt", "jain", low=0.9),
    Aim("fair", "beside-cubic", "share", low=0.25, high=0.75, note="a third to three times"),
    Aim("fair", "random", "utilisation", low=_near_best, note="`best` less 2"),
    Aim("gail", "random", "power", low=_near_oracle, note="95% of the oracle's"),
)


def aims_table(rows: Rows) -> Iterator[str]:
    """Return a table of all aims as Markdown's lines; rows of their recipes must be there."""
    yield "| recipe | links | score | aim | mean | runs that reach it |"
    yield "|---|---|---|---|---|---|"
    for aim in AIMS:
        row = rows[aim.recipe]
        of = known_metric(aim.metric, row.scores[aim.label])
        shown = (("at least", aim.least(rows)), ("at most", aim.high))
        bounds = [f"{word} {v * of.scale:.{of.digits}f}" for word, v in shown if math.isfinite(v)]
        note = f" ({aim.note})" if aim.note else ""
        mean = row.mean(aim.label, aim.metric) * of.scale
        yield (
            f"| {aim.recipe} | {aim.label} | {of.title} | {' and '.join(bounds)}{note} | "
            f"{mean:.{of.digits}f} | {aim.reached(rows)} of {len(row.seeds)} |"
        )
