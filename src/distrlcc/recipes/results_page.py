"""The page of results, from the rows that come with the package alone, and the recipes' aims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from distrlcc.evaluate.scores import Metric
from distrlcc.recipes.experiment import EXPERIMENTS, PREFER
from distrlcc.recipes.result_row import TOLERATED, ResultRow, known_metric

Rows = Mapping[str, ResultRow]
_SCHEMES = ("cubic", "bbr", "vegas", "copa")


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
    return max(rows["best"].peers["cellular"][scheme]["power"] for scheme in _SCHEMES)


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


_HEAD = f"""\
# Results

Written by `distrlcc results --markdown` from the result files in the package; nothing is typed in.

Each recipe was trained once for each of its seeds, in one process, and every run's policy was
scored on links of the split `test`, which no training and no choice among checkpoints has seen
(Indigo's links are the same in all splits). What stands here is the mean over the runs ± half of
its 95% interval, from the runs' spread (Student's t). One simulated run per link;
[Metrics](metrics.md) and [Fairness](fairness.md) define the scores. CPU-minutes are the training's,
with its scorings; collecting an expert's data comes before. `distrlcc reproduce RECIPE` trains a
recipe anew and compares: means must lie within the 95% interval that the runs' spread gives their
difference, or within two units of the last digit, in all but {TOLERATED:.0%} of the scores.
"""

_AIMS = """\
What was tried for those that are missed, and what holds them up: [best](recipes/best.md),
[Fairness](fairness.md#what-was-learned-about-the-reward).
"""


def results_page(rows: Rows) -> str:
    """Return the page as Markdown: tables of the recipes, the aims, and each suite's scores."""
    parts = [_HEAD, "\n".join(_recipes(rows))]
    if {aim.recipe for aim in AIMS} <= rows.keys():
        parts += ["## What was aimed at", _AIMS, "\n".join(aims_table(rows))]
    suites = sorted({_parts(label)[0] for row in rows.values() for label in row.scores})
    parts += [f"## `{suite}`\n\n" + "\n".join(_suite(suite, rows)) for suite in suites]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _recipes(rows: Rows) -> Iterator[str]:
    yield "| recipe | command | steps | CPU-minutes | seeds | shipped |"
    yield "|---|---|---|---|---|---|"
    for name, row in sorted(rows.items()):
        minutes = ", ".join(f"{m:.1f}" for m in row.cpu_minutes)
        seeds = ", ".join(map(str, row.seeds))
        yield (
            f"| [{name}](recipes/{_page(name)}.md) | `distrlcc reproduce {name}` | "
            f"{row.steps / 1e6:.1f} M | {minutes} | {seeds} | seed {row.shipped} |"
        )


def _page(name: str) -> str:
    return (name in EXPERIMENTS and EXPERIMENTS[name].page) or name


def _parts(label: str) -> tuple[str, str]:
    """Return a label's suite, and what stands after it of a preference."""
    suite, _, preference = label.partition(PREFER)
    return suite, f" --prefer {preference}" if preference else ""


def _suite(suite: str, rows: Rows) -> Iterator[str]:
    chosen = [
        (row, label) for row in rows.values() for label in row.scores if _parts(label)[0] == suite
    ]
    first, label = chosen[0]
    keys = list(first.scores[label])
    metrics = [known_metric(key, keys) for key in keys]
    yield "| | " + " | ".join(m.title for m in metrics) + " |"
    yield "|---" * (len(metrics) + 1) + "|"
    # The recipes' means with intervals, then the schemes' on the same links, each the best first.
    recipes = [
        (
            f"**{row.recipe}**{_parts(label)[1]}",
            [(row.mean(label, key), row.half_width(label, key)) for key in keys],
        )
        for row, label in chosen
    ]
    peers: dict[str, dict[str, float]] = {}
    for row, label in chosen:
        peers |= row.peers.get(label, {})
    schemes = [(name, [(scores[key], math.nan) for key in keys]) for name, scores in peers.items()]
    sign = 1 if metrics[0].better == "lower" else -1
    for lines in (recipes, schemes):
        for name, figures in sorted(lines, key=lambda line: sign * line[1][0][0]):
            cells = (_cell(m, *pair) for m, pair in zip(metrics, figures, strict=True))
            yield f"| {name} | " + " | ".join(cells) + " |"


def _cell(of: Metric, mean: float, half: float) -> str:
    if math.isnan(mean):
        return "-"
    if math.isinf(mean):
        return "never"
    text = f"{mean * of.scale:.{of.digits}f}"
    return text if math.isnan(half) else f"{text} ± {half * of.scale:.{of.digits}f}"
