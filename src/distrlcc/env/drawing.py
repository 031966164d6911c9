"""Pictures and lines that `render` makes of a link's episode so far: rates, queue, window."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MODES = ("ansi", "rgb_array")  # `text` and `picture`, as Gymnasium calls them
_WIDTH, _HEIGHT, _BAR = 360, 80, 20
_GREY, _BLUE, _RED, _GREEN = (205, 205, 205), (40, 90, 200), (200, 50, 50), (40, 150, 80)


def text(rows: Sequence[NDArray[np.float64]]) -> str:
    """Return a line of the newest step; see `picture`."""
    if not rows:
        return "an episode begins\n"
    time, capacity, rate, queue, window = rows[-1]
    longest = max(row[3] for row in rows)
    return (
        f"{time:6.2f} s  rate {_bar(rate, capacity)} {rate:.1f} of {capacity:.1f} Mbit/s  "
        f"queue {_bar(queue, longest)} {queue:.1f} ms  window {window:.0f} packets\n"
    )


def _bar(value: float, most: float) -> str:
    return f"[{'#' * round(_BAR * min(value / max(most, 1e-9), 1.0)):<{_BAR}}]"


def picture(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.uint8]:
    """Draw an episode's steps over time as RGB, uint8 ``[240, 360, 3]``.

    From above: rate (blue) over capacity (grey), queueing delay (red), window (green), each as high
    as its greatest value. A row is time, s, both rates, Mbit/s, delay, ms, and window, packets.
    """
    drawn = np.full((3, _HEIGHT, _WIDTH, 3), 255, np.uint8)
    if rows:
        steps = np.arange(_WIDTH) * len(rows) // _WIDTH
        _, capacity, rate, queue, window = np.array(rows).T[:, steps]
        height = np.arange(_HEIGHT, 0, -1)[:, None] / _HEIGHT
        panels = (((capacity, _GREY), (rate, _BLUE)), ((queue, _RED),), ((window, _GREEN),))
        for panel, curves in zip(drawn, panels, strict=True):
            most = max(1e-9, *(values.max() for values, _ in curves))
            for values, colour in curves:
                panel[height <= values / most] = colour
    drawn[:, -1] = 0
    return drawn.reshape(-1, _WIDTH, 3)
