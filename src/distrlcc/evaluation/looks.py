"""Colours and markers of schemes, in figures and on pages, without matplotlib.

Colours are safe for colour-blind readers: Okabe and Ito's (https://jfly.uni-koeln.de/color/),
lightened on dark pages. Policies take warm ones and stars.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle

BACKGROUND, INK, MUTED, GRID = "#ffffff", "#1a1a1a", "#555555", "#e6e6e6"
"""Colours of figures beside those of schemes: text is ink, and axes are muted."""
CAPACITY = "#e3e7ec"  # fill below a link's capacity


@dataclass(frozen=True, slots=True)
class Look:
    """How one scheme is drawn."""

    color: str
    dark: str  # its colour on a dark page
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
_OTHERS = (("#5C7F8A", "#93b5bf", "<"), ("#6B8E23", "#a9cc5f", ">"), ("#8B5A83", "#c493bc", "o"))


def looks(schemes: Iterable[tuple[str, bool]]) -> dict[str, Look]:
    """Give each scheme, learned or not, colours and a marker; those not fixed go by the order."""
    result: dict[str, Look] = {}
    policies, others = cycle(_LEARNED), cycle(_OTHERS)
    for name, learned in schemes:
        entry = next(policies) if learned else _KNOWN.get(name) or next(others)
        result[name] = Look(*entry, learned)
    return result


def color_pairs(schemes: Iterable[tuple[str, bool]]) -> dict[str, tuple[str, str]]:
    """Return each scheme's colours on light and on dark pages; see `looks`."""
    return {name: (look.color, look.dark) for name, look in looks(schemes).items()}
