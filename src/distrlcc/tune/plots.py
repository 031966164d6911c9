"""A tuner's members: their scores over updates, with their values, as figure and page."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from distrlcc.evaluation.figures import encode
from distrlcc.evaluation.page import Page, Section, Tile, lines_chart
from distrlcc.evaluation.tables import Cell, plain_table
from distrlcc.tune.report import Report, pieces
from distrlcc.tune.space import short, space_of
from distrlcc.tune.tune_config import TuneConfig

_MOST_LINES = 8
_OTHERS: dict[str, Any] = {"color": "#888888", "lw": 0.8, "alpha": 0.55}
_BEST: dict[str, Any] = {"color": "#D55E00", "lw": 1.6, "zorder": 4.0}


def lineage(reports: Sequence[Report], best: Report) -> list[Report]:
    """Return the reports that led to the best one, and itself."""
    ends = [segment.update for segment in best.schedule[1:]] + [best.update]
    found: list[Report] = []
    for index, end in enumerate(ends):
        path = best.schedule[: index + 1]
        found += [r for r in reports if r.schedule == path and path[-1].update < r.update <= end]
    return found


@mpl.rc_context({"font.size": 8.5})
def population_figures(
    config: TuneConfig, reports: Sequence[Report], best: Report
) -> dict[str, bytes]:
    """Return ``population.png`` and ``.svg``; the lineage of the best report is highlighted."""
    space = space_of(config)
    figure = Figure((4.8, 2.2 + 1.15 * len(space)), layout="constrained")
    ratios = (1.8, *(1.0 for _ in space))
    top, *below = figure.subplots(1 + len(space), 1, sharex=True, height_ratios=ratios)
    # Scores, and each value over the updates that were made with it.
    ways = [(way, _OTHERS) for way in pieces(reports)] + [(lineage(reports, best), _BEST)]
    for way, form in ways:
        top.plot([r.update for r in way], [r.score for r in way], marker="o", ms=1.8, **form)
        for axes, (key, distribution) in zip(below, space.items(), strict=True):
            parts = pieces(way)
            ends = [(part[0].schedule[-1].update, part[-1].update) for part in parts]
            values = [part[0].values[key] for part in parts for _ in range(2)]
            if distribution.kind == "choice":
                values = [distribution.choices.index(value) for value in values]
            axes.plot(np.ravel(ends), values, **form)
    top.plot([best.update], [best.score], "*", ms=9, color=_BEST["color"], zorder=5)
    # Axes: leave out the worst few scores, which would squeeze the rest.
    if len(reports) > 20:
        scores = [report.score for report in reports]
        low, high = np.quantile(scores, (0.05, 1.0) if config.mode == "max" else (0.0, 0.95))
        pad = 0.06 * max(high - low, 1e-6)
        top.set_ylim(low - pad, high + pad)
    top.set_ylabel(config.metric.replace("_", " "))
    top.set_title("highlighted: the best, and the members it copied", fontsize=7.5, loc="right")
    for axes, (key, distribution) in zip(below, space.items(), strict=True):
        axes.set_ylabel(key, fontsize=7.5)
        if distribution.kind == "loguniform":
            axes.set_yscale("log")
        if distribution.kind == "choice":
            axes.set_yticks(range(len(distribution.choices)), map(str, distribution.choices))
        else:
            axes.set_ylim(distribution.low, distribution.high)
    figure.align_ylabels()
    below[-1].set_xlabel("updates")
    return {f"population.{kind}": encode(figure, kind) for kind in ("png", "svg")}


def population_page(
    config: TuneConfig,
    best: Report,
    ranked: Sequence[tuple[Report, Report]],
    reports: Sequence[Report],
    failures: Mapping[int, str],
    notes: Sequence[str],
    command: str,
) -> str:
    """Return a tuner's page; ``best`` is of the policy that is kept, ``ranked`` of `standings`."""
    keys, metric = tuple(best.values), config.metric.replace("_", " ")
    rows: list[tuple[str | Cell, ...]] = [
        (
            f"{own.member}{' (failed)' if own.member in failures else ''}",
            *(Cell(f"{one.score:.4f}", value=one.score) for one in (own, last)),
            str(own.update),
            *(short(own.values[key]) for key in keys),
        )
        for own, last in ranked
    ]
    members = plain_table("Members", ("member", f"best {metric}", "last", "update", *keys), rows)
    # Scores, and the values that are numbers, over updates; more lines cannot be told apart.
    updates = sorted({report.update for report in reports})
    panels: list[Any] = [(metric, "", {})]
    panels += [(key, "", {}) for key in keys if isinstance(best.values[key], int | float)]
    for own, _ in ranked[:_MOST_LINES]:
        theirs = {report.update: report for report in reports if report.member == own.member}
        for title, _, lines in panels:
            at = {u: r.score if title == metric else r.values[title] for u, r in theirs.items()}
            lines[f"member {own.member}"] = [float(at.get(update, np.nan)) for update in updates]
    says = f"The {len(ranked[:_MOST_LINES])} best members." * (len(ranked) > _MOST_LINES)
    chart = lines_chart("scores", updates, panels, says=says, xLabel="updates")
    tiles = [
        Tile(f"{best.score:.4f}", f"best {metric}", how="main"),
        Tile(f"{best.utilisation:.1%}", "of the held-out links used by it"),
        Tile(f"{best.queueing_delay:.3f}", "queueing delay", "RTT"),
        Tile(str(len(failures)), f"of {config.members} members failed", how="bad" * bool(failures)),
    ]
    with_values = ", ".join(f"{key} {short(value)}" for key, value in best.values.items())
    answer = f"Member {best.member} is best, at update {best.update}, with {with_values}."
    failed = [f"Member {member} failed: {why}" for member, why in sorted(failures.items())]
    sections = [Section("Members", [members, *notes, *failed]), Section("Over updates", [chart])]
    title, lead = f"{config.command} of {config.run.recipe}", "Means over held-out links"
    return Page(title, command, sections, lead, answer, tiles).html()
