"""The report's figures: throughput against delay, and links over time.

Figures are matplotlib objects without global state; they are sized for one column of a paper and
are readable there.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from distrlcc.evaluate.labels import Box, place_labels
from distrlcc.evaluate.palette import LIGHT, Look, Theme, looks
from distrlcc.evaluate.scores import Series, metric
from distrlcc.evaluate.summary import Interval, SchemeSummary, Summary
from distrlcc.types import FloatArray

DPI = 200
_WIDTH = 4.8
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.width": 0.5,
    "text.parse_math": False,  # a policy may be named "$x$"
    "svg.fonttype": "path",
    "svg.hashsalt": "distrlcc",  # equal figures are equal files
}
"""matplotlib's settings of every figure."""


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
    shown = [
        s for s in summary.schemes if math.isfinite(s.overall[x].mean + s.overall[y].mean)
    ]  # a scheme that delivered nothing has no delay and no place
    with mpl.rc_context(STYLE):
        figure = blank_figure(3.3, theme)
        axes = figure.add_subplot()
        dress(axes, theme)
        style = looks([(s.scheme, s.learned) for s in summary.schemes], theme)
        delay, other = metric(x), metric(y)
        for scheme in reversed(shown):
            _cross(
                axes,
                _scaled(scheme.overall[x], delay.scale),
                _scaled(scheme.overall[y], other.scale),
                style[scheme.scheme],
                theme,
            )
        _delay_axis(axes, [_scaled(s.overall[x], delay.scale) for s in shown])
        axes.margins(y=0.16)
        axes.set_xlabel(delay.title)
        axes.set_ylabel(other.title)
        axes.invert_xaxis()
        axes.text(
            1.0, 1.02, "better \N{NORTH EAST ARROW}", transform=axes.transAxes, ha="right",
            va="bottom", fontsize=7.5, color=theme.muted,
        )  # fmt: skip
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

    Where senders said something of themselves, their windows, smoothed RTTs and what they sent
    again stand below.

    Args:
        series: One of each scheme, all on the same link.
        theme: Colours.
        schemes: All that look different, with whether each is learned; None: those of `series`.
    """
    own = _sender_panels(series)
    with mpl.rc_context(STYLE):
        figure = blank_figure(3.7 + 1.35 * len(own), theme)
        heights = (1.35, 1.0, *[0.95] * len(own))
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        for axes in panels:
            dress(axes, theme)
        upper, lower, *others = panels
        first = series[0]
        edges = _edges(first.time_s)
        upper.stairs(
            first.capacity_mbps, edges, fill=True, color=theme.capacity, lw=0, label="capacity"
        )
        style = looks(schemes or [(s.scheme, s.learned) for s in series], theme)
        for one in sorted(series, key=lambda s: s.learned):  # policies on top
            look = style[one.scheme]
            form: dict[str, Any] = {
                "color": look.color,
                "lw": 1.6 if one.learned else 0.95,
                "zorder": 4 if one.learned else 3,
                "ls": (0, (4, 1.5)) if one.scheme == "oracle" else "-",
                "solid_joinstyle": "round",
            }
            upper.plot(one.time_s, one.rate_mbps, label=one.scheme, **form)
            lower.plot(one.time_s, one.queueing_delay_ms, **form)
            for axes, panel in zip(others, own, strict=True):
                axes.plot(one.time_s, panel.values(one), **form)
        upper.set_xlim(edges[0], edges[-1])
        upper.set_ylim(0, _top([first.capacity_mbps, *(s.rate_mbps for s in series)]))
        upper.set_ylabel("rate (Mbit/s)")
        _queue_axis(lower, series)
        for axes, panel in zip(others, own, strict=True):
            axes.set_ylim(0, _top([panel.values(one) for one in series]))
            axes.set_ylabel(panel.title)
        panels[-1].set_xlabel("time (s)")
        figure.align_ylabels()
        # Policies first, then the link, then the rest, over the whole width.
        handles, names = upper.get_legend_handles_labels()
        learned = {s.scheme for s in series if s.learned}
        order = sorted(range(len(names)), key=lambda i: (names[i] not in learned, i))
        figure.legend(
            [handles[i] for i in order],
            [names[i] for i in order],
            loc="outside upper center",
            ncols=len(names) if sum(map(len, names)) + 4 * len(names) < 72 else -(-len(names) // 2),
            frameon=False,
            fontsize=7.5,
            handlelength=1.3,
            handletextpad=0.5,
            columnspacing=1.2,
            labelcolor=theme.ink,
        )
    return figure


def to_png(figure: Figure) -> bytes:
    """Return a figure as PNG of 200 dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG, its text as outlines."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def svg_pictures(light: Figure, dark: Figure) -> dict[str, str]:
    """Return a figure's two themes as addresses that hold them, for a page's ``src``."""
    kind = "data:image/svg+xml;base64,"
    return {
        "light": kind + base64.b64encode(to_svg(light)).decode(),
        "dark": kind + base64.b64encode(to_svg(dark)).decode(),
    }


def blank_figure(height: float, theme: Theme) -> Figure:
    """Return a figure as wide as a paper's column; draw under ``rc_context(STYLE)``.

    Args:
        height: In inches.
        theme: Colours.
    """
    figure = Figure(
        figsize=(_WIDTH, height), dpi=DPI, layout="constrained", facecolor=theme.background
    )
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, theme: Theme) -> None:
    """Give axes the look of all figures."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.muted)
    axes.tick_params(which="both", color=theme.muted, labelcolor=theme.muted)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    axes.grid(color=theme.grid, lw=0.6)
    axes.set_axisbelow(True)


def _cross(axes: Axes, x: Interval, y: Interval, look: Look, theme: Theme) -> None:
    line: dict[str, Any] = {"color": look.color, "lw": 1.0, "alpha": 0.75}
    order = 5 if look.learned else 3
    axes.plot([x.low, x.high], [y.mean, y.mean], zorder=order, **line)
    axes.plot([x.mean, x.mean], [y.low, y.high], zorder=order, **line)
    axes.plot(
        [x.mean],
        [y.mean],
        ls="none",
        marker=look.marker,
        color=look.color,
        ms=13 if look.learned and look.marker == "*" else 9 if look.learned else 6.5,
        mec=theme.background,
        mew=0.7,
        zorder=order + 1,
    )


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
        x, y = (_scaled(scheme.overall[key], metric(key).scale) for key in keys)
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


def _scaled(interval: Interval, scale: float) -> Interval:
    low, high = interval.low, interval.high
    if not math.isfinite(interval.half_width):  # of a single value: a point
        low = high = interval.mean
    return Interval(interval.mean * scale, low * scale, high * scale)


@dataclass(frozen=True)
class _SenderPanel:
    """What senders say of themselves."""

    title: str
    key: str
    """Field of :class:`SenderSeries`."""
    scale: float = 1.0

    def values(self, one: Series) -> FloatArray:
        """Return what a scheme's sender says, as shown; NaN where it says nothing."""
        if one.sender is None:
            return np.full(len(one.time_s), np.nan)
        return np.asarray(self.scale * getattr(one.sender, self.key))


_SENDER_PANELS = (
    _SenderPanel("cwnd (packets)", "cwnd_packets"),
    _SenderPanel("smoothed RTT (ms)", "smoothed_rtt_ms"),
    _SenderPanel("retransmitted (%)", "retransmitted_share", 100.0),
)


def _sender_panels(series: Sequence[Series]) -> list[_SenderPanel]:
    """Return those of which any sender says something."""
    return [p for p in _SENDER_PANELS if any(np.isfinite(p.values(s)).any() for s in series)]


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
