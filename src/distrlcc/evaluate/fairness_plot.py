"""One shared link over time: every flow's rate, and Jain's index under it."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from distrlcc.evaluate.fairness import WINDOW_S, jain_index, windowed_rates
from distrlcc.evaluate.palette import LIGHT, Theme, looks
from distrlcc.evaluate.plots import STYLE, blank_figure, dress
from distrlcc.evaluate.shared_run import BUCKET_S, MBIT, SharedRun


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
            upper.plot(
                middles, rate, color=style[name].color, lw=1.4 if learned else 1.0, label=name
            )
        upper.set_xlim(0, edges[-1])
        upper.set_ylim(0, 1.08 * float(capacity.max()))
        upper.set_ylabel("rate (Mbit/s)")
        lower.plot(middles, jain_index(rates), color=theme.ink, lw=1.2)
        lower.set_ylim(1.0 / max(len(flows), 2) - 0.02, 1.02)
        lower.set_ylabel("Jain's index")
        lower.set_xlabel("time (s)")
        figure.align_ylabels()
        figure.legend(
            loc="outside upper center", ncols=min(len(flows) + 2, 4), frameon=False, fontsize=7.5,
            handlelength=1.3, handletextpad=0.5, columnspacing=1.2, labelcolor=theme.ink,
        )  # fmt: skip
    return figure


def to_pdf(figure: Figure) -> bytes:
    """Return a figure as PDF, for papers."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()
