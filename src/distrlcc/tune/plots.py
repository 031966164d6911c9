"""Figures of a tuner: the population's scores and values over time, or trials by their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from distrlcc.evaluate.figures import LIGHT, STYLE, Theme, blank_figure, dress, looks
from distrlcc.tune.distribution import Distribution
from distrlcc.tune.report import Report
from distrlcc.tune.space import Space
from distrlcc.tune.tune_config import TuneConfig

_TITLES = {
    "reward": "reward per step",
    "utilisation": "utilisation",
    "queueing_delay": "queueing delay (RTT)",
    "loss": "loss",
}
_NO_SCORE = 1e29
"""Scores beyond this mean that a member diverged."""
_FEW = 20
"""Reports that are all shown."""


@dataclass(frozen=True)
class Piece:
    """What a member trained without copying another."""

    reports: tuple[Report, ...]
    parent: Report | None
    """Where it was copied from."""


def pieces(reports: Sequence[Report]) -> list[Piece]:
    """Split reports where a member copied another one."""
    grouped: dict[tuple[Any, ...], list[Report]] = {}
    for report in reports:
        line = (report.member, *((s.update, s.member) for s in report.schedule))
        grouped.setdefault(line, []).append(report)
    found = []
    for group in grouped.values():
        first = group[0]
        parent = None
        if len(first.schedule) > 1:
            copied = first.schedule[-2].member
            before = [
                r
                for r in reports
                if r.member == copied
                and r.update == first.since
                and r.schedule == first.schedule[:-1]
            ]
            parent = before[-1] if before else None
        found.append(Piece(tuple(group), parent))
    return found


def lineage(reports: Sequence[Report], best: Report) -> list[Report]:
    """Return the reports that led to the best one, and itself."""
    ends = [segment.update for segment in best.schedule[1:]] + [best.update]
    found: list[Report] = []
    for index, end in enumerate(ends):
        path = best.schedule[: index + 1]
        found += [r for r in reports if r.schedule == path and path[-1].update < r.update <= end]
    return found


def population_figure(
    config: TuneConfig,
    space: Space,
    reports: Sequence[Report],
    best: Report,
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw scores over updates, and every value beneath.

    Args:
        config: The tuner's.
        space: What is tuned.
        reports: Of all members.
        best: Whose lineage is highlighted.
        theme: Colours.
    """
    keys = space.keys
    color = looks([("best", True)], theme)["best"].color
    with mpl.rc_context(STYLE):
        figure = blank_figure(2.2 + 1.15 * len(keys), theme)
        ratios = (1.8, *(1.0 for _ in keys))
        axes = figure.subplots(1 + len(keys), 1, sharex=True, height_ratios=ratios)
        for one in axes:
            dress(one, theme)
        top = axes[0]
        form: dict[str, Any] = {"color": theme.muted, "lw": 0.8, "alpha": 0.55}
        label = "other members"
        for piece in pieces(reports):
            x, y = _curve(piece.reports)
            top.plot(x, y, marker="o", ms=1.8, label=label, **form)
            label = ""
            if piece.parent is not None:
                x, y = _curve((piece.parent, piece.reports[0]))
                top.plot(x, y, ls=(0, (1, 1.5)), **form)
            for one, key in zip(axes[1:], keys, strict=True):
                _hold(one, piece.reports, space.distributions[key], key, **form)
        line = lineage(reports, best)
        x, y = _curve(line)
        top.plot(x, y, color=color, lw=1.6, zorder=4, label="the best and whom it copied")
        top.plot([best.update], [best.score], "*", ms=9, color=color, zorder=5)
        top.set_ylabel(_TITLES[config.metric])
        _limit(top, reports, config.mode)
        for one, key in zip(axes[1:], keys, strict=True):
            _hold(one, line, space.distributions[key], key, color=color, lw=1.6, zorder=4)
            _value_axis(one, space.distributions[key], key, vertical=True)
        top.set_xlim(0, 1.02 * max(report.update for report in reports))
        axes[-1].set_xlabel("updates")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.align_ylabels()
        figure.legend(
            loc="outside upper center", ncols=2, frameon=False, fontsize=7.5, labelcolor=theme.ink
        )
    return figure


def search_figure(
    config: TuneConfig,
    space: Space,
    reports: Sequence[Report],
    best: Report,
    *,
    theme: Theme = LIGHT,
) -> Figure:
    """Draw trials' scores over steps, and their best scores over each value.

    Args:
        config: The tuner's.
        space: What is searched.
        reports: Of all trials.
        best: Which is highlighted.
        theme: Colours.
    """
    keys = space.keys
    color = looks([("best", True)], theme)["best"].color
    trials: dict[int, list[Report]] = {}
    for report in reports:
        trials.setdefault(report.member, []).append(report)
    with mpl.rc_context(STYLE):
        figure = blank_figure(2.0 + 1.6 * len(keys), theme)
        axes = figure.subplots(1 + len(keys), 1)
        for one in axes:
            dress(one, theme)
            one.set_ylabel(_TITLES[config.metric])
        for number, trial in trials.items():
            chosen = number == best.member
            form: dict[str, Any] = {
                "color": color if chosen else theme.muted,
                "alpha": 1.0 if chosen else 0.55,
                "zorder": 4 if chosen else 3,
            }
            x, y = [r.steps for r in trial], _curve(trial)[1]
            axes[0].plot(x, y, lw=1.6 if chosen else 0.8, marker="o", ms=1.8, **form)
            pick = max if config.mode == "max" else min
            top = pick(r.score for r in trial)
            early = trial[-1].steps < config.run.total_steps
            for one, key in zip(axes[1:], keys, strict=True):
                value = _number(space.distributions[key], trial[-1].values[key])
                one.plot(
                    [value],
                    [top],
                    ls="none",
                    marker="*" if chosen else "o",
                    ms=10 if chosen else 4.5,
                    mfc="none" if early and not chosen else form["color"],
                    color=form["color"],
                    zorder=form["zorder"],
                )
        axes[0].set_xlabel("environment steps")
        axes[0].xaxis.set_major_formatter(EngFormatter(sep=""))
        axes[0].set_xlim(0)
        for one, key in zip(axes[1:], keys, strict=True):
            _value_axis(one, space.distributions[key], key, vertical=False)
        for one in axes:
            _limit(one, reports, config.mode)
        if config.search is not None and config.search.asha:
            axes[1].set_title("hollow: stopped early", fontsize=7.5, color=theme.muted, loc="right")
    return figure


def _curve(reports: Sequence[Report]) -> tuple[list[int], list[float]]:
    """Return updates and scores; a score of a member that diverged is a gap."""
    scores = [r.score if abs(r.score) < _NO_SCORE else float("nan") for r in reports]
    return [r.update for r in reports], scores


def _hold(
    axes: Axes, reports: Sequence[Report], distribution: Distribution, key: str, **form: Any
) -> None:
    """Draw a value over the updates that were made with it."""
    x: list[float] = []
    y: list[float] = []
    begins = [r.since for r in reports[:1]] + [
        max(before.update, r.since) if r.update > before.update else r.since
        for before, r in pairwise(reports)
    ]
    for begin, report in zip(begins, reports, strict=True):
        value = _number(distribution, report.values[key])
        x += [begin, report.update]
        y += [value, value]
    axes.plot(x, y, **form)


def _number(distribution: Distribution, value: Any) -> float:
    """Return where a value lies on its axis; a choice's is its place in the list."""
    if distribution.kind == "choice":
        return float(distribution.choices.index(value)) if value in distribution.choices else -1.0
    return float(value)


def _value_axis(axes: Axes, distribution: Distribution, key: str, *, vertical: bool) -> None:
    """Scale and name an axis of values."""
    axis = axes.yaxis if vertical else axes.xaxis
    axis.set_label_text(key, fontsize=7.5)
    if distribution.is_log:
        (axes.set_yscale if vertical else axes.set_xscale)("log")
        (axes.set_ylim if vertical else axes.set_xlim)(
            distribution.low / 1.3, distribution.high * 1.3
        )
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    elif distribution.kind == "choice":
        places = range(len(distribution.choices))
        axis.set_ticks(list(places), [str(c) for c in distribution.choices])
        axes.margins(0.15)
    elif distribution.kind == "int":
        axis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    else:
        axis.set_major_locator(MaxNLocator(nbins=4))
    if distribution.kind in ("int", "uniform"):
        pad = 0.06 * (distribution.high - distribution.low)
        low, high = distribution.low - pad, distribution.high + pad
        (axes.set_ylim if vertical else axes.set_xlim)(low, high)


def _limit(axes: Axes, reports: Sequence[Report], mode: str) -> None:
    """Leave out the worst few scores, which would squeeze the rest."""
    scores = np.array([r.score for r in reports if abs(r.score) < _NO_SCORE])
    if not len(scores):
        return
    low, high = float(scores.min()), float(scores.max())
    if len(scores) > _FEW and mode == "max":
        low = float(np.quantile(scores, 0.05))
    elif len(scores) > _FEW:
        high = float(np.quantile(scores, 0.95))
    pad = 0.06 * max(high - low, 1e-6)
    axes.set_ylim(low - pad, high + pad)
