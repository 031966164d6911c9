"""How every figure looks: colours, markers, fonts and axes, and a figure as a file.

Schemes have equal colours in every plot, which are safe for colour-blind readers: Okabe and Ito's
(https://jfly.uni-koeln.de/color/), lightened where the page is dark. Policies take warm colours and
stars; the schemes that people use have one each.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from itertools import cycle
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 200
_WIDTH = 4.8
with resources.as_file(resources.files("distrlcc.evaluate") / "figures.mplstyle") as _path:
    STYLE: Any = mpl.rc_params_from_file(_path, use_default_template=False)
"""matplotlib's settings of every figure."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a page."""

    name: Literal["light", "dark"]
    background: str
    ink: str  # text and learned policies' labels
    muted: str  # axes and the labels of other schemes
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
    """Give each scheme a colour and a marker.

    Args:
        schemes: Name, and whether it is learned; the order counts for those without a fixed colour.
        theme: The page's colours.
    """
    result: dict[str, Look] = {}
    policies, others = cycle(_LEARNED), cycle(_OTHERS)
    for name, learned in schemes:
        entry = next(policies) if learned else _KNOWN.get(name) or next(others)
        light, dark, marker = entry
        result[name] = Look(light if theme.name == "light" else dark, marker, learned)
    return result


def to_png(figure: Figure) -> bytes:
    """Return a figure as PNG of 200 dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG, its text as outlines."""
    return _saved(figure, "svg", {"Date": None, "Creator": None})


def to_pdf(figure: Figure) -> bytes:
    """Return a figure as PDF, for papers."""
    return _saved(figure, "pdf", {"CreationDate": None})


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def svg_pictures(light: Figure, dark: Figure) -> dict[str, str]:
    """Return a figure's two themes as addresses that hold them, for a page's ``src``."""
    kind = "data:image/svg+xml;base64,"
    figures = {"light": light, "dark": dark}
    return {name: kind + base64.b64encode(to_svg(one)).decode() for name, one in figures.items()}


def panels(theme: Theme, inches: float, *heights: float) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a paper's column, and its panels; use ``rc_context(STYLE)``.

    Args:
        theme: Colours.
        inches: Height of the figure.
        heights: The panels' relative heights, from above; they share their time.
    """
    size = (_WIDTH, inches)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor=theme.background)
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)
    for axes in grid[:, 0]:
        axes.spines[["left", "bottom"]].set_color(theme.muted)
        axes.tick_params(which="both", color=theme.muted, labelcolor=theme.muted)
        axes.xaxis.label.set_color(theme.ink)
        axes.yaxis.label.set_color(theme.ink)
        axes.grid(color=theme.grid, lw=0.6)
    return figure, list(grid[:, 0])
