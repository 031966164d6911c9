"""How every figure looks beside `distrlcc.evaluation.looks`: fonts and axes; a figure as a file."""

import io
from importlib import resources
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, LogitFormatter, NullFormatter

from distrlcc.evaluation.looks import BACKGROUND, GRID, INK, MUTED

DPI = 200
_WIDTH = 4.8
with resources.as_file(resources.files("distrlcc.evaluation") / "figures.mplstyle") as _path:
    STYLE: Any = mpl.rc_params_from_file(_path, use_default_template=False)
"""matplotlib's settings of every figure."""


def encode(figure: Figure, kind: str) -> bytes:
    """Return a figure as ``png``, ``pdf`` or outlined ``svg``; equal figures give equal bytes."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter | LogitFormatter):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if isinstance(axis.get_minor_formatter(), LogFormatter | LogitFormatter):
            axis.set_minor_formatter(NullFormatter())
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata=dict.fromkeys(_VOLATILE[kind]))
    return buffer.getvalue()


_VOLATILE = {"png": ["Software"], "svg": ["Date", "Creator"], "pdf": ["CreationDate"]}
"""Fields that matplotlib would write into a file and that equal figures do not share, by kind."""


def panels(inches: float, *heights: float) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a paper's column, and panels of relative heights, from above."""
    figure = Figure(figsize=(_WIDTH, inches), dpi=DPI, layout="constrained", facecolor=BACKGROUND)
    grid = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)
    for axes in grid[:, 0]:
        axes.spines[["left", "bottom"]].set_color(MUTED)
        axes.tick_params(which="both", color=MUTED, labelcolor=MUTED)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
        axes.grid(color=GRID, lw=0.6)
    return figure, list(grid[:, 0])
