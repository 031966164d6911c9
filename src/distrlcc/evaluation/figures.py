"""How every figure looks: colours, markers, fonts and axes, and a figure as a file.

Schemes have equal colours in every plot, which are safe for colour-blind readers: Okabe and Ito's
(https://jfly.uni-koeln.de/color/), lightened where the page is dark. Policies take warm colours and
stars; the schemes that people use have one each.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from itertools import cycle
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, LogitFormatter, NullFormatter

DPI = 200
_WIDTH = 4.8
with resources.as_file(resources.files("distrlcc.evaluation") / "figures.mplstyle") as _path:
    STYLE: Any = mpl.rc_params_from_file(_path, use_default_template=False)
"""matplotlib's settings of every figure."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a page."""

    name: Literal["light", "dark"]
    background: str
    ink: str  # text
    muted: str  # axes
    grid: str
    capacity: str  # fill below a link's capacity


LIGHT = Theme("light", "#ffffff", "#1a1a1a", "#555555", "#e6e6e6", "#e3e7ec")
DARK = Theme("dark", "#1b1e23", "#f0f0f0", "#b3b8bf", "#33383f", "#343b45")


@dataclass(frozen=True, slots=True)
class Look:
    """How one scheme is drawn."""

    color: str
    marker: str
    learned: bool


# Light and dark colour, marker.
_KNOWN = {
    "cubic": ("#0072B2", "#4aa8e0", "s"),
    "bbr": ("#009E73", "#2fc79b", "^"),
    "vegas": ("#B8860B", "#e6b23a", "D"),
    "copa": ("#56B4E9", "#8fd0f5", "v"),
    "reno": ("#7A6FAC", "#a79ddb", "P"),
    "ledbat": ("#8C6D46", "#c09f74", "X"),
    "fixed": ("#999999", "#8d939b", "d"),
    "oracle": ("#333333", "#d8d8d8", "h"),
}
_LEARNED = (
    ("#D55E00", "#ff8a3d", "*"),
    ("#CC4C93", "#f086bf", "p"),
    ("#A3161A", "#ff6b6e", "H"),
    ("#E08E0B", "#ffc45c", "8"),
    ("#7B3FA0", "#c79be6", "*"),
    ("#8A4B08", "#d39a5c", "p"),
)
_OTHERS = (
    ("#5C7F8A", "#93b5bf", "<"),
    ("#6B8E23", "#a9cc5f", ">"),
    ("#8B5A83", "#c493bc", "o"),
)


def looks(schemes: Iterable[tuple[str, bool]], theme: Theme) -> dict[str, Look]:
    """Give each scheme, of which it is known whether it is learned, a colour and a marker.

    The order counts for those without a fixed colour.
    """
    result: dict[str, Look] = {}
    policies, others = cycle(_LEARNED), cycle(_OTHERS)
    for name, learned in schemes:
        entry = next(policies) if learned else _KNOWN.get(name) or next(others)
        light, dark, marker = entry
        result[name] = Look(light if theme.name == "light" else dark, marker, learned)
    return result


def encode(figure: Figure, kind: str) -> bytes:
    """Return a figure as ``png`` of 200 dots per inch, ``pdf``, or ``svg`` with text as outlines.

    Equal figures give equal bytes. Ticks of logarithmic axes are plain numbers: no math is parsed.
    """
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
"""What matplotlib would write into a file of each kind and equal figures do not share."""


def svg_pictures(draw: Callable[[Theme], Figure]) -> dict[str, str]:
    """Return a figure in both themes as addresses that hold it, for a page's ``src``."""
    pictures = {theme.name: encode(draw(theme), "svg") for theme in (LIGHT, DARK)}
    head = "data:image/svg+xml;base64,"
    return {name: head + base64.b64encode(data).decode() for name, data in pictures.items()}


def panels(theme: Theme, inches: float, *heights: float) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a paper's column, and its panels; use ``rc_context(STYLE)``.

    ``heights`` are the panels', from above, relative to each other; they share their time.
    """
    size = (_WIDTH, inches)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor=theme.background)
    grid = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)
    for axes in grid[:, 0]:
        axes.spines[["left", "bottom"]].set_color(theme.muted)
        axes.tick_params(which="both", color=theme.muted, labelcolor=theme.muted)
        axes.xaxis.label.set_color(theme.ink)
        axes.yaxis.label.set_color(theme.ink)
        axes.grid(color=theme.grid, lw=0.6)
    return figure, list(grid[:, 0])
