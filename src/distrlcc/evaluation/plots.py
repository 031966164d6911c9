"""All figures, one column of a paper wide: throughput against delay, time, shares of a link."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from distrlcc.evaluation.fairness import WINDOW_S, SharedRun, jain_index, windowed_rates
from distrlcc.evaluation.figures import STYLE, panels
from distrlcc.evaluation.looks import BACKGROUND, CAPACITY, INK, MUTED, Look, looks
from distrlcc.evaluation.runner import MBIT
from distrlcc.evaluation.scores import BUCKET_S, SENDER_METRICS, Metric, Series, metric, shown
from distrlcc.evaluation.summary import MeanInterval, Summary
from distrlcc.plugins import short
from distrlcc.types import FloatArray

_DELAY, _RATE = metric("p95_queueing_delay_ms"), metric("throughput_mbps")
"""The scatter plot's axes."""
_FLOW_BUCKETS = 300
_LEAST_SECONDS = 0.1
_DASHES = (0, (4, 1.5))
_ROW_LETTERS, _ROW_INCHES = 72, 0.15  # what a legend's row has room for, and its height


def scatter(summary: Summary) -> Figure:
    """Draw throughput against a reversed delay: up and right is better (Pantheon); 95 % crosses."""
    # A scheme that delivered nothing has no delay and no place.
    spots = {
        s.scheme: (_scaled(s.overall[_DELAY.key], _DELAY), _scaled(s.overall[_RATE.key], _RATE))
        for s in summary.schemes
        if math.isfinite(s.overall[_DELAY.key].mean + s.overall[_RATE.key].mean)
    }
    style = looks(summary.names())
    with mpl.rc_context(STYLE):
        figure, (axes,) = panels(3.3, 1.0)
        # The schemes, the best on top, and the axes.
        for name, (delay, rate) in reversed(spots.items()):
            _cross(axes, name, delay, rate, style[name])
        _delay_axis(axes, [delay for delay, _ in spots.values()])
        axes.margins(y=0.16)
        axes.set_xlabel(_DELAY.title)
        axes.set_ylabel(_RATE.title)
        axes.invert_xaxis()
        corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
        axes.text(1.0, 1.02, "better \N{NORTH EAST ARROW}", fontsize=7.5, color=MUTED, **corner)
        handles, names = axes.get_legend_handles_labels()
        legend(figure, handles[::-1], names[::-1])
    return figure


def time_series(
    series: Sequence[Series], *, schemes: Sequence[tuple[str, bool]] | None = None
) -> Figure:
    """Draw schemes on one link: rates over its shaded capacity, and queueing delay beneath.

    Windows, smoothed RTTs and retransmissions stand below if senders reported them. ``schemes`` are
    all that look different, with whether each is learned; None: those of ``series``.
    """
    style = looks(schemes or [(s.scheme, s.learned) for s in series])
    edges, capacity = series[0].edges_s, series[0].capacity_mbps
    series = sorted(series, key=lambda s: s.learned)  # policies on top
    own = _sender_panels(series)
    with mpl.rc_context(STYLE):
        heights = (1.35, 1.0, *[0.95] * len(own))
        figure, (upper, lower, *others) = panels(3.7 + 1.35 * len(own), *heights)
        # The link's capacity, and each scheme's lines in all panels.
        _shade(upper, capacity, edges)
        for place, one in enumerate(series):
            form: dict[str, Any] = {
                "color": style[one.scheme].color,
                "lw": 1.6 if one.learned else 0.95,
                "zorder": 4 if one.learned else 3,
                "ls": _DASHES if one.scheme == "oracle" else "-",
                "solid_joinstyle": "round",
            }
            upper.plot(one.time_s, one.rate_mbps, label=shown(one.scheme), **form)
            lower.plot(one.time_s, one.queueing_delay_ms, **form)
            for axes, values in zip(others, own.values(), strict=True):
                axes.plot(one.time_s, values[place], **form)
        # Scales and titles.
        upper.set_ylim(0, _top([capacity, *(s.rate_mbps for s in series)]))
        _queue_axis(lower, series)
        for axes, (title, values) in zip(others, own.items(), strict=True):
            axes.set_ylim(0, _top(values))
            axes.set_ylabel(title)
        _time_axis(figure, edges)
        # Policies first, then the link, then the rest, over the whole width.
        handles, names = upper.get_legend_handles_labels()
        learned = {shown(s.scheme) for s in series if s.learned}
        order = sorted(range(len(names)), key=lambda i: (names[i] not in learned, i))
        legend(figure, [handles[i] for i in order], [names[i] for i in order])
    return figure


def flow_names(run: SharedRun, contender: str) -> list[tuple[str, bool]]:
    """Return what a link's flows are called, and whether each is an agent's."""
    schemes, own = [flow.scheme for flow in run.scenario.flows], shown(contender)
    names = [f"{own} {k}" if s == "agent" else short(s) for k, s in enumerate(schemes, 1)]
    return [(name, s == "agent") for name, s in zip(names, schemes, strict=True)]


def fairness_plot(run: SharedRun, contender: str) -> Figure:
    """Draw the rates of a link's flows and their Jain's index; its agents are a contender's."""
    flows, names = run.scenario.flows, flow_names(run, contender)
    style = looks(names)
    # Rates in windows, and their mean over the flows that run.
    edges = np.arange(run.acked.shape[1] + 1) * BUCKET_S
    rates = windowed_rates(run)
    middles = np.arange(rates.shape[1]) * BUCKET_S + WINDOW_S / 2
    running = np.isfinite(rates).sum(axis=0)
    fair = np.where(running > 0, np.nansum(rates, axis=0) / np.maximum(running, 1), np.nan)
    with mpl.rc_context(STYLE):
        figure, (upper, lower) = panels(3.7, 1.7, 1.0)
        # Above the link's capacity, an equal share and the flows; below the index.
        capacity = run.capacity * MBIT / BUCKET_S
        _shade(upper, capacity, edges)
        upper.plot(middles, fair, color=MUTED, lw=0.9, ls=_DASHES, label="equal share")
        for (name, learned), rate in zip(names, rates, strict=True):
            width = 1.4 if learned else 1.0
            upper.plot(middles, rate, color=style[name].color, lw=width, label=shown(name))
        upper.set_ylim(0, 1.08 * float(capacity.max()))
        lower.plot(middles, jain_index(rates), color=INK, lw=1.2)
        lower.set_ylim(1.0 / max(len(flows), 2) - 0.02, 1.02)
        lower.set_ylabel("Jain's index")
        _time_axis(figure, edges)
        legend(figure, *upper.get_legend_handles_labels())
    return figure


def flow_lines(steps: FloatArray, wire_bytes: int) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return edges, s ``[B + 1]``, of a flow's steps ``[S, F]``, and values ``[B]`` by title."""
    time, duration, acked, lost, rtt, cwnd, *_ = steps.T
    end = time[-1] if len(time) else 1.0
    count = max(1, min(_FLOW_BUCKETS, math.floor(end / _LEAST_SECONDS)))
    edges = np.linspace(0.0, end, count + 1)
    place = np.clip(np.searchsorted(edges, time) - 1, 0, count - 1)

    total = partial(np.bincount, place, minlength=count)
    seconds = total(duration)
    with np.errstate(invalid="ignore", divide="ignore"):
        return edges, {
            "rate (Mbit/s)": total(acked) * wire_bytes * 8e-6 / seconds,
            "RTT (ms)": 1e3 * total(rtt * acked) / total(acked),
            "cwnd (packets)": total(cwnd * duration) / seconds,
            "lost (packets)": np.asarray(total(np.maximum(lost, 0.0)), float),
        }


def flow_plot(steps: FloatArray, name: str, wire_bytes: int) -> Figure:
    """Draw a flow's steps as `flow_lines` has them, steered by what is named."""
    edges, lines = flow_lines(steps, wire_bytes)
    losses = steps[steps[:, 3] > 0, 0]
    del lines["lost (packets)"]
    color = looks([(name, True)])[name].color
    with mpl.rc_context(STYLE):
        # A panel each, and a tick in the first where packets were lost.
        figure, found = panels(4.4, 1.0, 1.0, 1.0)
        for axes, (title, values) in zip(found, lines.items(), strict=True):
            axes.stairs(values, edges, color=color, lw=1.2, baseline=None)
            axes.set_ylabel(title)
            axes.set_ylim(bottom=0)
        if len(losses):
            found[0].plot(losses, np.zeros_like(losses), "|", color=MUTED, ms=5)
        ticks = "; ticks: packets lost" if len(losses) else ""
        found[0].set_title(f"{shown(name)}{ticks}", fontsize=8, loc="left", color=INK)
        _time_axis(figure, edges)
    return figure


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Name what is drawn above it, in as few rows as are wide enough; more make a higher figure."""
    count = len(names)
    rows = 1
    while rows < count and _letters(names, -(-count // rows)) > _ROW_LETTERS:
        rows += 1
    figure.set_figheight(figure.get_figheight() + _ROW_INCHES * (rows - 1))
    where: dict[str, Any] = {"loc": "outside upper center", "ncols": -(-count // rows)}
    figure.legend(handles, names, labelcolor=INK, **where)


def _letters(names: Sequence[str], columns: int) -> int:
    """Return how many letters wide names in columns are; a column's mark and gap are four."""
    return sum(max(map(len, part)) + 4 for part in np.array_split(names, columns))


def _shade(axes: Axes, capacity: FloatArray, edges: FloatArray) -> None:
    axes.stairs(capacity, edges, fill=True, color=CAPACITY, lw=0, label="capacity")
    axes.set_ylabel("rate (Mbit/s)")


def _time_axis(figure: Figure, edges: FloatArray) -> None:
    last = figure.axes[-1]
    last.set_xlim(edges[0], edges[-1])
    last.set_xlabel("time (s)")
    figure.align_ylabels()


def _cross(axes: Axes, name: str, x: MeanInterval, y: MeanInterval, look: Look) -> None:
    line: dict[str, Any] = {"color": look.color, "lw": 1.0, "alpha": 0.75}
    order = 5 if look.learned else 3
    axes.plot([x.low, x.high], [y.mean, y.mean], zorder=order, **line)
    axes.plot([x.mean, x.mean], [y.low, y.high], zorder=order, **line)
    size = 13 if look.learned and look.marker == "*" else 9 if look.learned else 6.5
    edge = {"mec": BACKGROUND, "mew": 0.7}
    point: dict[str, Any] = {"ls": "none", "marker": look.marker, "ms": size, **edge}
    axes.plot([x.mean], [y.mean], color=look.color, zorder=order + 1, label=shown(name), **point)


def _delay_axis(axes: Axes, intervals: Sequence[MeanInterval]) -> None:
    """Choose a logarithmic axis where delays span more than a factor of 8."""
    low = min((i.low for i in intervals), default=0.0)
    high = max((i.high for i in intervals), default=1.0)
    low = max(low, high / 2000)  # a scheme that sends next to nothing shall not squeeze the rest
    if low > 0 and high / low > 8:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.6, high * 2.0)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        pad = 0.14 * max(high - low, 0.05 * high, 1e-9)
        axes.set_xlim(low - pad, high + pad)


def _queue_axis(axes: Axes, series: Sequence[Series]) -> None:
    """Scale the delays; logarithmic where the schemes' typical delays lie far apart."""
    delays = [s.queueing_delay_ms[np.isfinite(s.queueing_delay_ms)] for s in series]
    delays = [d for d in delays if len(d)]
    axes.set_ylabel("queueing delay (ms)")
    if not delays:
        return
    typical = [float(np.median(d)) for d in delays]
    top = max(float(d.max()) for d in delays)
    if max(typical) > 25 * max(min(typical), 0.4) or top > 40 * max(max(typical), 0.4):
        axes.set_yscale("symlog", linthresh=1.0, linscale=0.3)
        axes.set_ylim(0, 1.3 * top)
        ticks = [t for t in (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if t <= 1.3 * top]
        axes.set_yticks(ticks, [f"{t}" for t in ticks])
        axes.minorticks_off()
    else:
        axes.set_ylim(0, _top(delays))


def _scaled(interval: MeanInterval, of: Metric) -> MeanInterval:
    low, high, scale = interval.low, interval.high, of.scale
    if not math.isfinite(interval.half_width):  # of a single value: a point
        low = high = interval.mean
    return MeanInterval(interval.mean * scale, low * scale, high * scale)


def _sender_panels(series: Sequence[Series]) -> dict[str, list[FloatArray]]:
    """Return what senders report by title, for each series; NaN where it reports nothing."""
    panels = {}
    for m in SENDER_METRICS:
        values = [
            np.full(len(one.time_s), np.nan) if one.sender is None else m.scale * one.sender[m.key]
            for one in series
        ]
        if any(np.isfinite(each).any() for each in values):
            panels[m.title.removeprefix("mean ")] = values
    return panels


def _top(arrays: Sequence[FloatArray]) -> float:
    """Return an upper limit that cuts lone spikes off."""
    values = np.concatenate(arrays)
    values = values[np.isfinite(values)]
    if not len(values) or values.max() <= 0:
        return 1.0
    return float(min(1.08 * values.max(), 1.6 * np.quantile(values, 0.995)) or 1.0)
