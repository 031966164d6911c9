"""The page of results, from the rows that come with the package alone."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template

from distrlcc.evaluation.scorecard import GATES, PREFER, known_metric
from distrlcc.evaluation.scores import Metric, shown
from distrlcc.recipes.experiment import EXPERIMENTS
from distrlcc.recipes.result_row import TOLERATED, ResultRow

Rows = Mapping[str, ResultRow]


def results_page(rows: Rows) -> str:
    """Return the page as Markdown: tables of the recipes, the gates, and each suite's scores."""
    source = resources.files("distrlcc.recipes").joinpath("results.md.template").read_text("utf-8")
    gates = gates_table(rows["one"]) if "one" in rows else []
    before, of_gates, after = source.split("%%\n")
    page = Template(before + of_gates * bool(gates) + after).substitute(
        tolerated=f"{100 * TOLERATED:.0f}",
        recipes=_lines(_recipe(name, row) for name, row in sorted(rows.items())),
        gates=_lines(gates),
    )
    for suite in sorted({_parts(label)[0] for row in rows.values() for label in row.scores}):
        metrics, cells = _suite(suite, rows)
        titles = " | ".join(metric.title for metric in metrics)
        head = f"## `{suite}`\n\n| | {titles} |\n|---{'|---' * len(metrics)}|\n"
        page += f"{head}{_lines(cells)}\n"
    return page.strip() + "\n"


def _lines(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def gates_table(row: ResultRow) -> list[tuple[str, ...]]:
    """Return the cells of the scorecard's gates, a row's means and what ships; passes are bold."""
    table: list[tuple[str, ...]] = []
    for (label, key), gate in GATES.items():
        if key not in row.scores.get(label, {}):
            table.append((label, key, "", "not measured", "not measured"))
            continue
        of = known_metric(key, row.scores[label])
        beside = {name: scores[key] for name, scores in row.peers[label].items()}
        low, high = gate.bounds(beside)
        values = row.mean(label, key), row.of_shipped(label, key)
        cells = (f"**{of.text(v)}**" if low <= v <= high else of.text(v) for v in values)
        table.append((label, of.title, gate.text(of, beside), *cells))
    return table


def _recipe(name: str, row: ResultRow) -> tuple[str, ...]:
    page = (name in EXPERIMENTS and EXPERIMENTS[name].page) or name
    minutes = ", ".join(f"{m:.1f}" for m in row.cpu_minutes)
    steps, seeds = f"{row.steps / 1e6:.1f} M", ", ".join(map(str, row.seeds))
    command = f"`distrlcc reproduce {name}`"
    shipped = "another, trained for longer" if row.refined else f"seed {row.shipped}"
    return f"[{name}](recipes/{page}.md)", command, steps, minutes, seeds, shipped


def _parts(label: str) -> tuple[str, str]:
    """Return a label's suite, and what stands after it of a preference."""
    suite, _, preference = label.partition(PREFER)
    return suite, f" --prefer {preference}" if preference else ""


def _suite(suite: str, rows: Rows) -> tuple[list[Metric], list[list[str]]]:
    chosen = [
        (row, label) for row in rows.values() for label in row.scores if _parts(label)[0] == suite
    ]
    first, label = chosen[0]
    keys = list(first.scores[label])
    metrics = [known_metric(key, keys) for key in keys]
    # The recipes' means with intervals, then the schemes' on the same links, each the best first.
    recipes = []
    for row, label in chosen:
        means = [(row.mean(label, key), row.half_width(label, key)) for key in keys]
        recipes.append((f"**{row.recipe}**{_parts(label)[1]}", means))
        if row.refined:
            means = [(row.of_shipped(label, key), math.nan) for key in keys]
            recipes.append((f"**{row.recipe}**, shipped", means))
    peers = {name: it for row, label in chosen for name, it in row.peers.get(label, {}).items()}
    schemes = [
        (shown(name), [(scores.get(key, math.nan), math.nan) for key in keys])
        for name, scores in peers.items()
    ]
    sign = 1 if metrics[0].better == "lower" else -1
    found = []
    for lines in (recipes, schemes):
        lines.sort(key=lambda line: (math.isnan(line[1][0][0]), sign * line[1][0][0]))
        for name, figures in lines:
            found.append([name, *map(_cell, metrics, *zip(*figures, strict=True))])
    return metrics, found


def _cell(of: Metric, mean: float, half: float) -> str:
    text = of.text(mean)
    return text if math.isnan(half) or not math.isfinite(mean) else f"{text} ± {of.text(half)}"
