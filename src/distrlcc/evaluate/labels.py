"""Places labels beside points so that they hide neither points nor one another.

Each label tries places around its point, near ones first, and takes the one that covers least; then
all labels choose anew a few times, as what is in their way has moved. Plain rectangles in pixels:
matplotlib is not needed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_RADII = (6.0, 10.0, 15.0, 22.0, 31.0, 42.0, 56.0)
_ANGLES = 16
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Return the common area."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def grown(self, by: float) -> Box:
        """Return the rectangle with a margin."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    @property
    def area(self) -> float:
        """Width times height."""
        return (self.right - self.left) * (self.top - self.bottom)


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    *,
    bounds: Box,
    hard: Sequence[Box] = (),
    soft: Sequence[Box] = (),
    unit: float = 1.0,
) -> list[Box]:
    """Choose a rectangle for each label.

    Args:
        points: Where the labelled points are.
        sizes: Width and height of each label.
        bounds: Where labels may be.
        hard: What must not be covered: markers.
        soft: What is covered if there is no other way: lines.
        unit: Pixels in a point (1/72 inch), to scale distances.
    """
    # Places for each label, with the cost of what does not move.
    candidates: list[list[tuple[float, Box]]] = []
    for point, size in zip(points, sizes, strict=True):
        places = _candidates(point, size, unit)
        candidates.append([(r / 100 + _cost(b, bounds, hard, soft, unit), b) for r, b in places])
    # Each in turn takes the cheapest, given where the others are by now.
    chosen: dict[int, Box] = {}
    for _ in range(_SWEEPS):
        for index, options in enumerate(candidates):
            others = [box for i, box in chosen.items() if i != index]
            _, _, chosen[index] = min(
                (cost + _covered(box, others, unit), rank, box)
                for rank, (cost, box) in enumerate(options)
            )
    return [chosen[index] for index in range(len(points))]


def _cost(box: Box, bounds: Box, hard: Sequence[Box], soft: Sequence[Box], unit: float) -> float:
    """Return how bad a place is, whatever the other labels do.

    Areas count per label area, so that a far place without overlap beats a near one with any.
    """
    outside = box.area - box.overlap(bounds)
    crossed = sum(box.overlap(b) for b in soft)
    return (100 * outside + 5 * crossed) / box.area + _covered(box, hard, unit)


def _covered(box: Box, others: Sequence[Box], unit: float) -> float:
    margin = box.grown(1.5 * unit)
    return 50 * sum(margin.overlap(b) for b in others) / box.area


def _candidates(
    point: tuple[float, float], size: tuple[float, float], unit: float
) -> list[tuple[float, Box]]:
    """Return places around a point, nearest and to the right first, with their distance."""
    x, y = point
    width, height = size
    places = []
    for radius in _RADII:
        for step in range(_ANGLES):
            angle = 2 * math.pi * step / _ANGLES
            across, up = math.cos(angle), math.sin(angle)
            left = x + across * (radius * unit + width / 2) - width / 2
            bottom = y + up * (radius * unit + height / 2) - height / 2
            places.append((radius, Box(left, bottom, left + width, bottom + height)))
    return places
