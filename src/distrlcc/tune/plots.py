"""The figure of a tuner: its members' scores over updates, and their values beneath."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from distrlcc.evaluation.figures import encode
from distrlcc.tune.report import Report, pieces
from distrlcc.tune.space import space_of
from distrlcc.tune.tune_config import TuneConfig

_NO_SCORE = 1e29  # scores beyond this mean that a member diverged
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
        scores = [r.score if abs(r.score) < _NO_SCORE else float("nan") for r in way]
        top.plot([r.update for r in way], scores, marker="o", ms=1.8, **form)
        for axes, (key, distribution) in zip(below, space.items(), strict=True):
            parts = pieces(way)
            ends = [(part[0].schedule[-1].update, part[-1].update) for part in parts]
            values = [part[0].values[key] for part in parts for _ in range(2)]
            if distribution.kind == "choice":
                values = [distribution.choices.index(value) for value in values]
            axes.plot(np.ravel(ends), values, **form)
    top.plot([best.update], [best.score], "*", ms=9, color=_BEST["color"], zorder=5)
    # Axes: leave out the worst few scores, which would squeeze the rest.
    finite = [report.score for report in reports if abs(report.score) < _NO_SCORE]
    if len(finite) > 20:
        low, high = np.quantile(finite, (0.05, 1.0) if config.mode == "max" else (0.0, 0.95))
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
