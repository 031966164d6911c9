"""All figures: throughput against delay, links and flows over time, shares of a link.

Figures are matplotlib objects without global state; they are sized for one column of a paper and
are readable there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from distrlcc.evaluate.fairness import WINDOW_S, SharedRun, jain_index, windowed_rates
from distrlcc.evaluate.figures import LIGHT, STYLE, Look, Theme, blank_figure, dress, looks
from distrlcc.evaluate.labels import Box, place_labels
from distrlcc.evaluate.runner import MBIT
from distrlcc.evaluate.scores import BUCKET_S, Metric, Series, metric
from distrlcc.evaluate.summary import Interval, SchemeSummary, Summary
from distrlcc.net.flow_record import Step
from distrlcc.types import FloatArray

_FLOW_BUCKETS = 300
_LEAST_SECONDS = 0.1
_SENDER_PANELS = (
    ("cwnd (packets)", "cwnd_packets", 1.0),
    ("smoothed RTT (ms)", "smoothed_rtt_ms", 1.0),
    ("retransmitted (%)", "retransmitted_share", 100.0),
)
"""What senders report: title, field of `SenderSeries`, factor."""


def scatter(
    summary: Summary,
    *,
    theme: Theme = LIGHT,
    x: str = "p95_queueing_delay_ms",
    y: str = "throughput_mbps",
) -> Figure:
    """Draw a metric against a delay whose axis is reversed: up and right is better (Pantheon).

    Crosses are the 95 % intervals of the means over links; a single value has none.

    Args:
        summary: What was measured.
        theme: Colours.
        x: The delay's metric.
        y: The other metric.
    """
    # A scheme that delivered nothing has no delay and no place.
    shown = [s for s in summary.schemes if math.isfinite(s.overall[x].mean + s.overall[y].mean)]
    with mpl.rc_context(STYLE):
        figure = blank_figure(3.3, theme)
        axes = figure.add_subplot()
        dress(axes, theme)
        style = looks([(s.scheme, s.learned) for s in summary.schemes], theme)
        delay, other = metric(x), metric(y)
        for scheme in reversed(shown):
            across, up = _scaled(scheme.overall[x], delay), _scaled(scheme.overall[y], other)
            _cross(axes, across, up, style[scheme.scheme], theme)
        _delay_axis(axes, [_scaled(s.overall[x], delay) for s in shown])
        axes.margins(y=0.16)
        axes.set_xlabel(delay.title)
        axes.set_ylabel(other.title)
        axes.invert_xaxis()
        corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
        better = "better \N{NORTH EAST ARROW}"
        axes.text(1.0, 1.02, better, fontsize=7.5, color=theme.muted, **corner)
        figure.canvas.draw()
        _label(axes, shown, (x, y), style, theme)
    return figure


def time_series(
    series: Sequence[Series],
    *,
    theme: Theme = LIGHT,
    schemes: Sequence[tuple[str, bool]] | None = None,
) -> Figure:
    """Draw schemes on one link: rates over its shaded capacity, and queueing delay beneath.

    Where senders reported them, windows, smoothed RTTs and retransmissions stand below.

    Args:
        series: One of each scheme, all on the same link.
        theme: Colours.
        schemes: All that look different, with whether each is learned; None: those of `series`.
    """
    style = looks(schemes or [(s.scheme, s.learned) for s in series], theme)
    edges, capacity = _edges(series[0].time_s), series[0].capacity_mbps
    series = sorted(series, key=lambda s: s.learned)  # policies on top
    own = _sender_panels(series)
    with mpl.rc_context(STYLE):
        figure = blank_figure(3.7 + 1.35 * len(own), theme)
        heights = (1.35, 1.0, *[0.95] * len(own))
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        for axes in panels:
            dress(axes, theme)
        upper, lower, *others = panels
        # The link's capacity, and each scheme's lines in all panels.
        upper.stairs(capacity, edges, fill=True, color=theme.capacity, lw=0, label="capacity")
        for place, one in enumerate(series):
            form: dict[str, Any] = {
                "color": style[one.scheme].color,
                "lw": 1.6 if one.learned else 0.95,
                "zorder": 4 if one.learned else 3,
                "ls": (0, (4, 1.5)) if one.scheme == "oracle" else "-",
                "solid_joinstyle": "round",
            }
            upper.plot(one.time_s, one.rate_mbps, label=one.scheme, **form)
            lower.plot(one.time_s, one.queueing_delay_ms, **form)
            for axes, values in zip(others, own.values(), strict=True):
                axes.plot(one.time_s, values[place], **form)
        # Scales and titles.
        upper.set_xlim(edges[0], edges[-1])
        upper.set_ylim(0, _top([capacity, *(s.rate_mbps for s in series)]))
        upper.set_ylabel("rate (Mbit/s)")
        _queue_axis(lower, series)
        for axes, (title, values) in zip(others, own.items(), strict=True):
            axes.set_ylim(0, _top(values))
            axes.set_ylabel(title)
        panels[-1].set_xlabel("time (s)")
        figure.align_ylabels()
        # Policies first, then the link, then the rest, over the whole width.
        handles, names = upper.get_legend_handles_labels()
        learned = {s.scheme for s in series if s.learned}
        order = sorted(range(len(names)), key=lambda i: (names[i] not in learned, i))
        narrow = sum(map(len, names)) + 4 * len(names) < 72
        columns = len(names) if narrow else -(-len(names) // 2)
        _legend(figure, [handles[i] for i in order], [names[i] for i in order], columns, theme)
    return figure


def fairness_plot(run: SharedRun, contender: str, *, theme: Theme = LIGHT) -> Figure:
    """Draw a run.

    Args:
        run: One link's.
        contender: What its agents are.
        theme: Colours.
    """
    flows = run.scenario.flows
    names = [
        (f"{contender} {k + 1}", True) if flow.scheme == "agent" else (flow.scheme, False)
        for k, flow in enumerate(flows)
    ]
    style = looks(names, theme)
    edges = np.arange(run.acked.shape[1] + 1) * BUCKET_S
    rates = windowed_rates(run)
    middles = np.arange(rates.shape[1]) * BUCKET_S + WINDOW_S / 2
    running = np.isfinite(rates).sum(axis=0)
    fair = np.where(running > 0, np.nansum(rates, axis=0) / np.maximum(running, 1), np.nan)
    with mpl.rc_context(STYLE):
        figure = blank_figure(3.7, theme)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.7, 1.0))
        for axes in (upper, lower):
            dress(axes, theme)
        capacity = run.capacity * MBIT / BUCKET_S
        upper.stairs(capacity, edges, fill=True, color=theme.capacity, lw=0, label="capacity")
        upper.plot(middles, fair, color=theme.muted, lw=0.9, ls=(0, (4, 1.5)), label="equal share")
        for (name, learned), rate in zip(names, rates, strict=True):
            width = 1.4 if learned else 1.0
            upper.plot(middles, rate, color=style[name].color, lw=width, label=name)
        upper.set_xlim(0, edges[-1])
        upper.set_ylim(0, 1.08 * float(capacity.max()))
        upper.set_ylabel("rate (Mbit/s)")
        lower.plot(middles, jain_index(rates), color=theme.ink, lw=1.2)
        lower.set_ylim(1.0 / max(len(flows), 2) - 0.02, 1.02)
        lower.set_ylabel("Jain's index")
        lower.set_xlabel("time (s)")
        figure.align_ylabels()
        handles, labels = upper.get_legend_handles_labels()
        _legend(figure, handles, labels, min(len(flows) + 2, 4), theme)
    return figure


def flow_plot(
    series: Sequence[Step], name: str, wire_bytes: int, *, theme: Theme = LIGHT
) -> Figure:
    """Draw a flow.

    Args:
        series: Its steps.
        name: What steered it.
        wire_bytes: Size of a packet, bytes.
        theme: Colours.
    """
    steps = np.array(series, float).reshape(-1, len(Step._fields))
    time, duration, acked, lost, rtt, cwnd, *_ = steps.T
    end = time[-1] if len(time) else 1.0
    count = max(1, min(_FLOW_BUCKETS, math.floor(end / _LEAST_SECONDS)))
    edges = np.linspace(0.0, end, count + 1)
    place = np.clip(np.searchsorted(edges, time) - 1, 0, count - 1)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(place, values, count)

    seconds = np.maximum(total(duration), 1e-9)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = total(acked) * wire_bytes * 8e-6 / seconds
        delays = 1e3 * total(rtt * acked) / total(acked)
        windows = total(cwnd * duration) / seconds
    color = looks([(name, True)], theme)[name].color
    with mpl.rc_context(STYLE):
        figure = blank_figure(4.4, theme)
        panels = figure.subplots(3, 1, sharex=True)
        titles = ("rate (Mbit/s)", "RTT (ms)", "cwnd (packets)")
        for axes, values, title in zip(panels, (rates, delays, windows), titles, strict=True):
            dress(axes, theme)
            axes.stairs(values, edges, color=color, lw=1.2, baseline=None)
            axes.set_ylabel(title)
            axes.set_ylim(bottom=0)
        losses = time[lost > 0]
        if len(losses):
            panels[0].plot(losses, np.zeros_like(losses), "|", color=theme.muted, ms=5)
        ticks = "; ticks: packets lost" if len(losses) else ""
        panels[0].set_title(f"{name}{ticks}", fontsize=8, loc="left", color=theme.ink)
        panels[-1].set_xlim(0, end)
        panels[-1].set_xlabel("time (s)")
        figure.align_ylabels()
    return figure


def _legend(
    figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int, theme: Theme
) -> None:
    form = {"handlelength": 1.3, "handletextpad": 0.5, "columnspacing": 1.2}
    look = {"frameon": False, "fontsize": 7.5, "labelcolor": theme.ink}
    figure.legend(handles, names, loc="outside upper center", ncols=columns, **form, **look)


def _cross(axes: Axes, x: Interval, y: Interval, look: Look, theme: Theme) -> None:
    line: dict[str, Any] = {"color": look.color, "lw": 1.0, "alpha": 0.75}
    order = 5 if look.learned else 3
    axes.plot([x.low, x.high], [y.mean, y.mean], zorder=order, **line)
    axes.plot([x.mean, x.mean], [y.low, y.high], zorder=order, **line)
    size = 13 if look.learned and look.marker == "*" else 9 if look.learned else 6.5
    edge = {"mec": theme.background, "mew": 0.7}
    point: dict[str, Any] = {"ls": "none", "marker": look.marker, "ms": size, **edge}
    axes.plot([x.mean], [y.mean], color=look.color, zorder=order + 1, **point)


def _delay_axis(axes: Axes, intervals: Sequence[Interval]) -> None:
    """Choose a logarithmic axis where delays span more than a factor of 8."""
    low = min((i.low for i in intervals), default=0.0)
    high = max((i.high for i in intervals), default=1.0)
    low = max(low, high / 2000)  # a scheme that sends next to nothing shall not squeeze the rest
    if low > 0 and high / low > 8:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.6, high * 2.0)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
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


def _label(
    axes: Axes,
    schemes: Sequence[SchemeSummary],
    keys: tuple[str, str],
    style: dict[str, Look],
    theme: Theme,
) -> None:
    """Write each scheme's name beside its marker, with a thin line to it if it is far away."""
    figure = axes.figure
    unit = figure.dpi / 72
    to_pixels: Callable[[Any], Any] = axes.transData.transform
    points, sizes, markers, lines, texts = [], [], [], [], []
    for scheme in schemes:
        x, y = (_scaled(scheme.overall[key], metric(key)) for key in keys)
        look = style[scheme.scheme]
        px, py = to_pixels((x.mean, y.mean))
        (x0, y0), (x1, y1) = sorted(to_pixels([(x.low, y.mean), (x.high, y.mean)]).tolist())
        lines.append(Box(x0, y0 - unit, x1, y1 + unit))
        (_, bottom), (_, top) = to_pixels([(x.mean, y.low), (x.mean, y.high)])
        lines.append(Box(px - unit, bottom, px + unit, top))
        radius = unit * (5.5 if look.learned else 3.5)
        markers.append(Box(px - radius, py - radius, px + radius, py + radius))
        weight = "bold" if look.learned else "normal"
        text = axes.text(x.mean, y.mean, scheme.scheme, color=look.color, weight=weight, zorder=8)
        extent = text.get_window_extent()
        points.append((px, py))
        sizes.append((extent.width, extent.height))
        texts.append(text)
    extent = axes.get_window_extent()
    bounds = Box(extent.x0, extent.y0, extent.x1, extent.y1).grown(-2 * unit)
    boxes = place_labels(points, sizes, bounds=bounds, hard=markers, soft=lines, unit=unit)
    from_pixels = axes.transData.inverted().transform
    for text, box, (px, py) in zip(texts, boxes, points, strict=True):
        text.set_position(tuple(from_pixels((box.left, box.bottom))))
        text.set_verticalalignment("bottom")
        near_x = min(max(px, box.left), box.right)
        near_y = min(max(py, box.bottom), box.top)
        if math.hypot(near_x - px, near_y - py) > 12 * unit:
            (x0, y0), (x1, y1) = from_pixels([(px, py), (near_x, near_y)])
            axes.plot([x0, x1], [y0, y1], color=theme.muted, lw=0.5, zorder=2)


def _scaled(interval: Interval, of: Metric) -> Interval:
    low, high, scale = interval.low, interval.high, of.scale
    if not math.isfinite(interval.half_width):  # of a single value: a point
        low = high = interval.mean
    return Interval(interval.mean * scale, low * scale, high * scale)


def _sender_panels(series: Sequence[Series]) -> dict[str, list[FloatArray]]:
    """Return what senders report by title, for each series; NaN where it reports nothing."""
    panels = {}
    for title, key, scale in _SENDER_PANELS:
        values = [
            np.full(len(one.time_s), np.nan)
            if one.sender is None
            else np.asarray(scale * getattr(one.sender, key))
            for one in series
        ]
        if any(np.isfinite(each).any() for each in values):
            panels[title] = values
    return panels


def _edges(middles: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the buckets' edges from their middles."""
    if len(middles) < 2:
        return np.array([0.0, 2 * float(middles[0])]) if len(middles) else np.array([0.0, 1.0])
    half = np.diff(middles) / 2
    inner = middles[:-1] + half
    return np.concatenate([[middles[0] - half[0]], inner, [middles[-1] + half[-1]]])


def _top(arrays: Sequence[np.ndarray[Any, Any]]) -> float:
    """Return an upper limit that shows all but lone spikes."""
    values = np.concatenate(arrays)
    values = values[np.isfinite(values)]
    if not len(values) or values.max() <= 0:
        return 1.0
    return float(min(1.08 * values.max(), 1.6 * np.quantile(values, 0.995)) or 1.0)
