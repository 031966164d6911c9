"""Places labels beside points so that they hide neither points nor one another.

Each label tries places around its point, near ones first, and takes the one that covers least; then
all labels choose anew a few times, as what is in their way has moved. A box is a row of left,
bottom, right and top, in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distrlcc.types import FloatArray

_RADII = (6.0, 10.0, 15.0, 22.0, 31.0, 42.0, 56.0)
_ANGLES = 16
_SWEEPS = 4


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    *,
    bounds: FloatArray,
    hard: FloatArray,
    soft: FloatArray,
    unit: float = 1.0,
) -> FloatArray:
    """Choose a box for the label of each point, within ``bounds``; returns ``[L, 4]``.

    What is ``hard``, boxes ``[H, 4]``, must not be covered; what is ``soft``, ``[S, 4]``, is where
    there is no other way. ``unit`` is a point (1/72 inch), pixels.
    """
    # Places for each label, nearest and to the right first, with the cost of what does not move.
    radii, angles = np.meshgrid(_RADII, 2 * math.pi * np.arange(_ANGLES) / _ANGLES, indexing="ij")
    distances = radii.ravel()
    ways = np.stack([np.cos(angles).ravel(), np.sin(angles).ravel()], axis=1)
    places, costs = [], []
    for point, extent in zip(points, sizes, strict=True):
        half = np.array(extent) / 2
        middles = point + ways * (distances[:, None] * unit + half)
        boxes = np.concatenate([middles - half, middles + half], axis=1)
        # Areas count per label area: a far place without overlap beats a near one with any.
        area = extent[0] * extent[1]
        outside = area - common_areas(boxes, bounds[None])
        crossed = (100 * outside + 5 * common_areas(boxes, soft)) / area
        places.append(boxes)
        costs.append(distances / 100 + crossed + _covered(boxes, hard, unit))
    # Each in turn takes the cheapest, given where the others are by now.
    chosen = np.full((len(places), 4), np.nan)
    for _ in range(_SWEEPS):
        for index, boxes in enumerate(places):
            chosen[index] = np.nan
            others = chosen[np.isfinite(chosen[:, 0])]
            chosen[index] = boxes[np.argmin(costs[index] + _covered(boxes, others, unit))]
    return chosen


def common_areas(boxes: FloatArray, others: FloatArray) -> FloatArray:
    """Return the area that each of ``boxes`` ``[N, 4]`` has in common with the others, summed."""
    upper = np.minimum(boxes[:, None, 2:], others[:, 2:])
    lower = np.maximum(boxes[:, None, :2], others[:, :2])
    return np.asarray(np.maximum(upper - lower, 0.0).prod(axis=2).sum(axis=1))


def _covered(boxes: FloatArray, others: FloatArray, unit: float) -> FloatArray:
    margin = 1.5 * unit * np.array([-1.0, -1.0, 1.0, 1.0])
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return np.asarray(50 * common_areas(boxes + margin, others) / areas)
