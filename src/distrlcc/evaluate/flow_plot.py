"""One flow over time: rate, RTT and window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from distrlcc.evaluate.palette import LIGHT, Theme, looks
from distrlcc.evaluate.plots import STYLE, blank_figure, dress
from distrlcc.net.flow_record import Step

_BUCKETS = 300
_LEAST_SECONDS = 0.1


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
    count = max(1, min(_BUCKETS, math.floor(end / _LEAST_SECONDS)))
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
