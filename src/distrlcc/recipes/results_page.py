"""The page of results: written from the rows that come with the package, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from distrlcc.evaluate.scores import Metric
from distrlcc.recipes.aims import AIMS, aims_table
from distrlcc.recipes.experiment import EXPERIMENTS, PREFER
from distrlcc.recipes.row import TOLERATED, Row, known_metric

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


def results_page(rows: Mapping[str, Row]) -> str:
    """Return the page as Markdown: tables of the recipes, the aims, and each suite's scores."""
    parts = [_HEAD, "\n".join(_recipes(rows))]
    if {aim.recipe for aim in AIMS} <= rows.keys():
        parts += ["## What was aimed at", _AIMS, "\n".join(aims_table(rows))]
    suites = sorted({_parts(label)[0] for row in rows.values() for label in row.scores})
    parts += [f"## `{suite}`\n\n" + "\n".join(_suite(suite, rows)) for suite in suites]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _recipes(rows: Mapping[str, Row]) -> Iterator[str]:
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


def _suite(suite: str, rows: Mapping[str, Row]) -> Iterator[str]:
    chosen = [
        (row, label) for row in rows.values() for label in row.scores if _parts(label)[0] == suite
    ]
    first, label = chosen[0]
    keys = list(first.scores[label])
    metrics = [known_metric(key, keys) for key in keys]
    yield "| | " + " | ".join(m.title for m in metrics) + " |"
    yield "|---" * (len(metrics) + 1) + "|"
    sign = 1 if metrics[0].better == "lower" else -1
    for row, label in sorted(chosen, key=lambda pair: sign * pair[0].mean(pair[1], keys[0])):
        cells = (_cell(m, row.mean(label, m.key), row.half_width(label, m.key)) for m in metrics)
        yield f"| **{row.recipe}**{_parts(label)[1]} | " + " | ".join(cells) + " |"
    yield from _peers(chosen, metrics)


def _peers(rows: Sequence[tuple[Row, str]], metrics: Sequence[Metric]) -> Iterator[str]:
    peers: dict[str, dict[str, float]] = {}
    for row, label in rows:
        peers |= row.peers.get(label, {})
    sign = 1 if metrics[0].better == "lower" else -1
    for name, scores in sorted(peers.items(), key=lambda item: sign * item[1][metrics[0].key]):
        cells = (_cell(m, scores[m.key], math.nan) for m in metrics)
        yield f"| {name} | " + " | ".join(cells) + " |"


def _cell(of: Metric, mean: float, half: float) -> str:
    if math.isnan(mean):
        return "-"
    if math.isinf(mean):
        return "never"
    text = f"{mean * of.scale:.{of.digits}f}"
    return text if math.isnan(half) else f"{text} ± {half * of.scale:.{of.digits}f}"
