"""Figures: lines over time, for a page or a paper's column, and throughput against delay."""

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
from distrlcc.evaluation.looks import BACKGROUND, CAPACITY, INK, MUTED, Look, color_pairs, looks
from distrlcc.evaluation.page import Chart, Panel, lines_chart
from distrlcc.evaluation.runner import MBIT
from distrlcc.evaluation.scores import BUCKET_S, SENDER_METRICS, Series, metric, shown
from distrlcc.evaluation.summary import ORACLE, Summary, figure
from distrlcc.plugins import short
from distrlcc.types import FloatArray

_DELAY, _RATE = metric("p95_queueing_delay_ms"), metric("throughput_mbps")
"""The scatter plot's axes."""
_FLOW_BUCKETS = 300
_LEAST_SECONDS = 0.1
_THICK, _THIN = 2.2, 1.4  # widths of policies' lines on a page, and of others'
_ROW_LETTERS, _ROW_INCHES = 72, 0.15  # what a legend's row has room for, and its height


def scattered(summary: Summary) -> Chart:
    """Return throughput against delay, with 95 % crosses: up and right is better (Pantheon)."""
    colors = color_pairs(summary.names())
    points = []
    for s in summary.schemes:
        delay, rate = s.overall[_DELAY.key], s.overall[_RATE.key]
        if not math.isfinite(delay.mean + rate.mean):
            continue  # a scheme that delivered nothing has no delay and no place
        point: dict[str, Any] = {"x": figure(delay.mean), "y": figure(rate.mean)}
        if math.isfinite(delay.half_width + rate.half_width):
            point |= {"xl": figure(delay.low), "xh": figure(delay.high)}
            point |= {"yl": figure(rate.low), "yh": figure(rate.high)}
        points.append(point | {"label": s.shown, "learned": s.learned, "colors": colors[s.scheme]})
    says = "Means over links"
    if summary.left_out and summary.common:
        of = f"{summary.common} of {len(summary.links)}"
        says += f" on which every scheme has a run that counts ({of})"
    says += "; up and right is better."
    if summary.has_intervals:
        says += " Crosses are 95% bootstrap intervals over links."
    if summary.left_out and not summary.common:
        says += " Some runs do not count, and the schemes' links differ."
    elif summary.has_intervals:
        says += (
            " All schemes ran on the same links, so where links differ much in rate the intervals "
            "are wide and move together; the table's utilisation and power compare schemes more "
            "sharply."
        )
    labels = {"xLabel": _DELAY.title, "yLabel": _RATE.title}
    return Chart("scatter", "scatter", {"points": points, **labels}, says=says)


def scatter(summary: Summary) -> Figure:
    """Draw what `scattered` has; the delay's axis is reversed."""
    points = scattered(summary).data["points"]
    style = {shown(name): look for name, look in looks(summary.names()).items()}
    with mpl.rc_context(STYLE):
        figure, (axes,) = panels(3.3, 1.0)
        for point in reversed(points):  # the best on top
            _cross(axes, point, style[point["label"]])
        _delay_axis(axes, points)
        axes.margins(y=0.16)
        axes.set_xlabel(_DELAY.title)
        axes.set_ylabel(_RATE.title)
        axes.invert_xaxis()
        corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
        axes.text(1.0, 1.02, "better \N{NORTH EAST ARROW}", fontsize=7.5, color=MUTED, **corner)
        handles, names = axes.get_legend_handles_labels()
        legend(figure, handles[::-1], names[::-1])
    return figure


def over_time(
    name: str, lines: Sequence[Series], schemes: Sequence[tuple[str, bool]] | None = None
) -> Chart:
    """Return schemes on one link: rates over its capacity, delays, windows, senders' reports.

    ``schemes`` are all that look different, with whether each is learned; None: those of ``lines``.
    """
    colors = color_pairs(schemes or [(one.scheme, one.learned) for one in lines])
    lines = sorted(lines, key=lambda one: one.learned)  # policies on top

    def panel(title: str, unit: str, values: Sequence[FloatArray | None]) -> Panel:
        pairs = zip(lines, values, strict=True)
        return title, unit, {shown(one.scheme): each for one, each in pairs if each is not None}

    panels = [panel("rate", "Mbit/s", [one.rate_mbps for one in lines])]
    panels.append(panel("queueing delay", "ms", [one.queueing_delay_ms for one in lines]))
    if any(one.cwnd_packets is not None for one in lines):
        panels.append(panel("window", "packets", [one.cwnd_packets for one in lines]))
    for m in SENDER_METRICS:
        values = [None if one.sender is None else m.scale * one.sender[m.key] for one in lines]
        if any(each is not None and np.isfinite(each).any() for each in values):
            panels.append(panel(m.label.removeprefix("mean "), m.unit, values))
    looks: dict[str, dict[str, Any]] = {
        shown(one.scheme): {"colors": colors[one.scheme], "width": _THICK if one.learned else _THIN}
        for one in lines
    }
    looks.get(ORACLE, {})["dash"] = [4, 2]
    first = lines[0]
    capacity = first.capacity_mbps
    return lines_chart(name, first.time_s, panels, looks, title=first.link, capacity=capacity)


def shared_link(name: str, run: SharedRun, contender: str) -> Chart:
    """Return the rates of a link's flows and their Jain's index; its agents are a contender's."""
    schemes, own = [flow.scheme for flow in run.scenario.flows], shown(contender)
    names = [f"{own} {k}" if s == "agent" else short(s) for k, s in enumerate(schemes, 1)]
    colors = color_pairs(zip(names, (s == "agent" for s in schemes), strict=True))
    rates = windowed_rates(run)
    running = np.isfinite(rates).sum(axis=0)
    fair = np.where(running > 0, np.nansum(rates, axis=0) / np.maximum(running, 1), np.nan)
    middles = np.arange(rates.shape[1]) * BUCKET_S + WINDOW_S / 2
    looks: dict[str, dict[str, Any]] = {shown(flow): {"colors": colors[flow]} for flow in names}
    looks["Jain's index"] = {"colors": ("#444", "#ccc")}
    looks["equal share"] = {**looks["Jain's index"], "dash": [4, 2], "width": 1.0}
    flows = dict(zip(map(shown, names), rates, strict=True))
    panels = [("rate", "Mbit/s", flows | {"equal share": fair})]
    panels.append(("Jain's index", "", {"Jain's index": jain_index(rates)}))
    title = f"{own} on {run.scenario.name}"
    width = len(run.capacity) - len(middles) + 1
    capacity = np.convolve(run.capacity, np.ones(width) / width, "valid") * MBIT / BUCKET_S
    return lines_chart(name, middles, panels, looks, title=title, capacity=capacity)


def flow_chart(steps: FloatArray, name: str, wire_bytes: int) -> Chart:
    """Return a flow's steps ``[S, F]`` over time, steered by what is named."""
    time, duration, acked, lost, rtt, cwnd, *_ = steps.T
    end = time[-1] if len(time) else 1.0
    count = max(1, min(_FLOW_BUCKETS, math.floor(end / _LEAST_SECONDS)))
    edges = np.linspace(0.0, end, count + 1)
    place = np.clip(np.searchsorted(edges, time) - 1, 0, count - 1)

    total = partial(np.bincount, place, minlength=count)
    seconds = total(duration)
    with np.errstate(invalid="ignore", divide="ignore"):
        panels: list[Panel] = [
            ("rate", "Mbit/s", {"rate": total(acked) * wire_bytes * 8e-6 / seconds}),
            ("RTT", "ms", {"RTT": 1e3 * total(rtt * acked) / total(acked)}),
            ("cwnd", "packets", {"cwnd": total(cwnd * duration) / seconds}),
            ("lost", "packets", {"lost": total(np.maximum(lost, 0.0))}),
        ]
    return lines_chart("flow", (edges[1:] + edges[:-1]) / 2, panels, title=shown(name))


def drawn(chart: Chart) -> Figure:
    """Draw lines over time, with panels below each other, as a page does."""
    time, parts = np.array(chart.data["time"]), chart.data["panels"]
    room = [np.array(chart.data[key], float) for key in ("capacity",) if key in chart.data]
    with mpl.rc_context(STYLE):
        figure, found = panels(1.0 + 1.35 * len(parts), 1.35, *[1.0] * (len(parts) - 1))
        if room:
            found[0].fill_between(time, room[0], step="mid", color=CAPACITY, lw=0, label="capacity")
        for axes, panel in zip(found, parts, strict=True):
            arrays = [np.array(line["values"], float) for line in panel["lines"]]
            for line, values in zip(panel["lines"], arrays, strict=True):
                width = line.get("width", _THIN)
                form: dict[str, Any] = {"color": line.get("colors", (INK,))[0], "lw": 0.7 * width}
                form |= {"ls": "--" if "dash" in line else "-", "zorder": 2 + width}
                axes.plot(time, values, label=line["label"], solid_joinstyle="round", **form)
            _value_axis(axes, arrays + room * (axes is found[0]), far=panel["unit"] == "ms")
            axes.set_ylabel(f"{panel['title']} ({panel['unit']})".removesuffix(" ()"))
        found[-1].set_xlim(0.0, time[-1] + time[0])
        found[-1].set_xlabel("time (s)")
        found[0].set_title(chart.title, fontsize=8, loc="left", color=INK)
        figure.align_ylabels()
        # Policies first, then the link, then the rest, over the whole width.
        handles, names = found[0].get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda i: (handles[i].get_zorder() < 4, i))
        if len(names) > 1:
            legend(figure, [handles[i] for i in order], [names[i] for i in order])
    return figure


def heatmap(chart: Chart, title: str, label: str) -> Figure:
    """Draw a map as a page does: what fails is warm, what holds cold; grey was not judged."""
    data = chart.data
    with mpl.rc_context(STYLE):
        figure, (axes,) = panels(4.0, 1.0)
        axes.grid(visible=False)
        axes.set_facecolor("silver")  # unlike what just holds, which is white
        logs = np.log10(np.clip(np.array(data["ratio"], float), 0.1, 10.0))
        image = axes.pcolormesh(logs, cmap="RdBu", vmin=-1.0, vmax=1.0)
        for axis, way in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            values = data[f"{way}s"]
            texts = [v if isinstance(v, str) else f"{float(f'{v:.3g}'):,g}" for v in values]
            places = range(0, len(values), max(1, len(values) // 6))
            axis.set_ticks([k + 0.5 for k in places], [texts[k] for k in places])
            axis.set_label_text(data[f"{way}Label"])
        bar = figure.colorbar(image, ax=axes)
        bar.set_ticks([-1, -0.5, 0, 0.5, 1], labels=["0.1", "0.3", "1", "3", "10"])
        bar.set_label(label)
        axes.set_title(title, fontsize=8, loc="left", color=INK)
    return figure


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Name what is drawn above it, in as few rows as are wide enough; more make a higher figure."""
    widths, rows, columns = [len(name) + 4 for name in names], 1, 1  # with a mark and a gap
    for rows in range(1, len(names) + 1):
        columns = -(-len(names) // rows)
        if sum(map(max, np.array_split(widths, columns))) <= _ROW_LETTERS:
            break
    figure.set_figheight(figure.get_figheight() + _ROW_INCHES * (rows - 1))
    where: dict[str, Any] = {"loc": "outside upper center", "ncols": columns}
    figure.legend(handles, names, labelcolor=INK, **where)


def _cross(axes: Axes, point: dict[str, Any], look: Look) -> None:
    order, x, y = 5 if look.learned else 3, point["x"], point["y"]
    if "xl" in point:
        line: dict[str, Any] = {"color": look.color, "lw": 1.0, "alpha": 0.75, "zorder": order}
        axes.plot([point["xl"], point["xh"]], [y, y], **line)
        axes.plot([x, x], [point["yl"], point["yh"]], **line)
    size = 13 if look.learned and look.marker == "*" else 9 if look.learned else 6.5
    form: dict[str, Any] = {"ls": "none", "marker": look.marker, "ms": size, "mec": BACKGROUND}
    form |= {"mew": 0.7, "color": look.color, "zorder": order + 1, "label": point["label"]}
    axes.plot([x], [y], **form)


def _delay_axis(axes: Axes, points: Sequence[dict[str, Any]]) -> None:
    """Choose a logarithmic axis where delays span more than a factor of 8."""
    low = min((point.get("xl", point["x"]) for point in points), default=0.0)
    high = max((point.get("xh", point["x"]) for point in points), default=1.0)
    low = max(low, high / 2000)  # a scheme that sends next to nothing shall not squeeze the rest
    if low > 0 and high / low > 8:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.6, high * 2.0)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        pad = 0.14 * max(high - low, 0.05 * high, 1e-9)
        axes.set_xlim(low - pad, high + pad)


def _value_axis(axes: Axes, values: Sequence[FloatArray], *, far: bool) -> None:
    """Scale values; logarithmic where those of delays typically lie far apart."""
    known = [each[np.isfinite(each)] for each in values if np.isfinite(each).any()]
    typical = [float(np.median(each)) for each in known] or [0.0]
    top = max((float(each.max()) for each in known), default=0.0)
    apart = max(typical) > 25 * max(min(typical), 0.4) or top > 40 * max(max(typical), 0.4)
    if not (far and apart):
        # Lone spikes are cut off.
        every = np.concatenate([*known, [0.0]])
        axes.set_ylim(0, min(1.08 * top, 1.6 * float(np.quantile(every, 0.995))) or 1.0)
        return
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.3)
    axes.set_ylim(0, 1.3 * top)
    ticks = [t for t in (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if t <= 1.3 * top]
    axes.set_yticks(ticks, [f"{t}" for t in ticks])
    axes.minorticks_off()
