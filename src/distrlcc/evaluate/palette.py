"""Colours and markers of schemes, equal in every plot and safe for colour-blind readers.

The colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), lightened where the page is
dark. Policies take warm colours and stars; the schemes that people use have one each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a page."""

    name: Literal["light", "dark"]
    background: str
    ink: str
    """Text and learned policies' labels."""
    muted: str
    """Axes and the labels of other schemes."""
    grid: str
    capacity: str
    """Fill below a link's capacity."""


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
    learned, others = 0, 0
    for name, is_learned in schemes:
        if is_learned:
            entry = _LEARNED[learned % len(_LEARNED)]
            learned += 1
        elif name in _KNOWN:
            entry = _KNOWN[name]
        else:
            entry = _OTHERS[others % len(_OTHERS)]
            others += 1
        light, dark, marker = entry
        result[name] = Look(light if theme.name == "light" else dark, marker, is_learned)
    return result
