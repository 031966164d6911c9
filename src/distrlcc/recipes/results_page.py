"""The page of results, from the rows that come with the package alone, and the recipes' aims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import jinja2

from distrlcc.evaluation.benchmark import PREFER, known_metric
from distrlcc.evaluation.scores import Metric
from distrlcc.recipes.experiment import EXPERIMENTS
from distrlcc.recipes.result_row import TOLERATED, ResultRow

Rows = Mapping[str, ResultRow]


@dataclass(frozen=True)
class Aim:
    """Bounds of a recipe's score."""

    recipe: str
    label: str
    """Of the links, as in rows of results."""
    metric: str
    low: float = -math.inf
    high: float = math.inf
    note: str = ""
    """Where a bound comes from, if from other rows."""


def aims(rows: Rows) -> list[Aim]:
    """Return all aims; some bounds come from other recipes' rows, which must be there."""
    best, gail = rows["best"], rows["gail"]
    schemes = max(
        best.peers["cellular"][name]["power"] for name in ("cubic", "bbr", "vegas", "copa")
    )
    near_oracle = 0.95 * gail.peers["random"]["oracle"]["power"]
    near_best = best.mean("random", "utilisation") - 0.02
    found = [
        Aim("best", "random", "utilisation", low=0.985),
        Aim("best", "random", "queueing_delay_rtt", high=0.04),
        Aim("best", "random", "first_second_utilisation", low=0.85),
        Aim("best", "random", "excess_loss", high=0.002),
        Aim("best", "cellular", "power", low=schemes, note="the schemes' greatest"),
        Aim("best", "dynamic, after changes", "recovery_rtts", high=5.0),
    ]
    for label in ("shared-2", "shared-4"):
        found.append(Aim("fair", label, "jain", low=0.98))
        found.append(Aim("fair", label, "utilisation", low=0.97))
        found.append(Aim("fair", label, "queueing_delay_rtt", high=0.1))
    return [
        *found,
        Aim("fair", "shared-rtt", "jain", low=0.9),
        Aim("fair", "beside-cubic", "share", low=0.25, high=0.75, note="a third to three times"),
        Aim("fair", "random", "utilisation", low=near_best, note="`best` less 2"),
        Aim("gail", "random", "power", low=near_oracle, note="95% of the oracle's"),
    ]


def results_page(rows: Rows) -> str:
    """Return the page as Markdown: tables of the recipes, the aims, and each suite's scores."""
    source = resources.files("distrlcc.recipes").joinpath("results.md.jinja").read_text("utf-8")
    page = jinja2.Template(source, undefined=jinja2.StrictUndefined, trim_blocks=True)
    suites = sorted({_parts(label)[0] for row in rows.values() for label in row.scores})
    text: str = page.render(
        tolerated=TOLERATED,
        recipes=[_recipe(name, row) for name, row in sorted(rows.items())],
        aims=aims_table(rows) if {"best", "fair", "gail"} <= rows.keys() else [],
        suites=[(suite, *_suite(suite, rows)) for suite in suites],
    )
    return text.strip() + "\n"


def aims_table(rows: Rows) -> list[tuple[str, ...]]:
    """Return the cells of all aims; rows of their recipes must be there."""
    table: list[tuple[str, ...]] = []
    for aim in aims(rows):
        row = rows[aim.recipe]
        of = known_metric(aim.metric, row.scores[aim.label])
        shown = (("at least", aim.low), ("at most", aim.high))
        bounds = [f"{word} {v * of.scale:.{of.digits}f}" for word, v in shown if math.isfinite(v)]
        bound = " and ".join(bounds) + (f" ({aim.note})" if aim.note else "")
        mean = f"{row.mean(aim.label, aim.metric) * of.scale:.{of.digits}f}"
        reached = sum(aim.low <= v <= aim.high for v in row.scores[aim.label][aim.metric])
        runs = f"{reached} of {len(row.seeds)}"
        table.append((aim.recipe, aim.label, of.title, bound, mean, runs))
    return table


def _recipe(name: str, row: ResultRow) -> tuple[str, ...]:
    page = (name in EXPERIMENTS and EXPERIMENTS[name].page) or name
    minutes = ", ".join(f"{m:.1f}" for m in row.cpu_minutes)
    steps, seeds = f"{row.steps / 1e6:.1f} M", ", ".join(map(str, row.seeds))
    command = f"`distrlcc reproduce {name}`"
    return f"[{name}](recipes/{page}.md)", command, steps, minutes, seeds, f"seed {row.shipped}"


def _parts(label: str) -> tuple[str, str]:
    """Return a label's suite, and what stands after it of a preference."""
    suite, _, preference = label.partition(PREFER)
    return suite, f" --prefer {preference}" if preference else ""


def _suite(suite: str, rows: Rows) -> tuple[list[Metric], list[list[str]]]:
    """Return a suite's metrics, and the cells of its table."""
    chosen = [
        (row, label) for row in rows.values() for label in row.scores if _parts(label)[0] == suite
    ]
    first, label = chosen[0]
    keys = list(first.scores[label])
    metrics = [known_metric(key, keys) for key in keys]
    # The recipes' means with intervals, then the schemes' on the same links, each the best first.
    recipes = [
        (
            f"**{row.recipe}**{_parts(label)[1]}",
            [(row.mean(label, key), row.half_width(label, key)) for key in keys],
        )
        for row, label in chosen
    ]
    peers = {name: it for row, label in chosen for name, it in row.peers.get(label, {}).items()}
    schemes = [(name, [(scores[key], math.nan) for key in keys]) for name, scores in peers.items()]
    sign = 1 if metrics[0].better == "lower" else -1
    return metrics, [
        [name, *(_cell(m, *pair) for m, pair in zip(metrics, figures, strict=True))]
        for lines in (recipes, schemes)
        for name, figures in sorted(lines, key=lambda line: sign * line[1][0][0])
    ]


def _cell(of: Metric, mean: float, half: float) -> str:
    if not math.isfinite(mean):
        return "-" if math.isnan(mean) else "never"
    text = f"{mean * of.scale:.{of.digits}f}"
    return text if math.isnan(half) else f"{text} ± {half * of.scale:.{of.digits}f}"
