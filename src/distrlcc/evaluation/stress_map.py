"""A map of one property over two dimensions of the space of links."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrlcc.errors import ConfigError, unknown_name
from distrlcc.evaluation.search import Workers
from distrlcc.evaluation.space import DIMENSIONS, Point, fits
from distrlcc.evaluation.stress import Judge
from distrlcc.evaluation.summary import numbers
from distrlcc.types import FloatArray

CELLS = 32


def dimension_named(name: str) -> str:
    """Return a dimension by its name, with or without unit, as ``rate``; raises ConfigError."""
    names = [each for each in DIMENSIONS if each != "seed"]
    for each in (name + unit for unit in ("", "_mbps", "_ms", "_bdp", "_s")):
        if each in names:
            return each
    raise unknown_name("dimension", name, names)


def point_at(settings: Sequence[str], x: str, y: str) -> Point:
    """Return the simplest link with some values, NAME=VALUE each; raises ConfigError."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        name = dimension_named(name)
        if name in values:
            raise ConfigError(f"--at: {name} is given twice; leave one out")
        if name in (x, y):
            raise ConfigError(f"--at: {name} is an axis of the map; leave it out")
        values[name] = DIMENSIONS[name].read(name, text)
    for name in (*values, x, y):
        needs = DIMENSIONS[name].needs.split()
        if needs and not {x, y, *values} & {*needs}:
            raise ConfigError(f"{name} says nothing without {' or '.join(needs)}; add it to --at")
    if values.get("trace") == "cellular" and "rate_mbps" in (x, y, *values):
        raise ConfigError("rate_mbps says nothing of a cellular trace; take another dimension")
    return Point(**values)


@dataclass(frozen=True)
class Map:
    """Scores of one property over a grid; NaN: no such link, or not judged there."""

    judge: Judge
    x: str
    y: str
    xs: tuple[Any, ...]  # values along x, ``[X]``
    ys: tuple[Any, ...]
    scores: FloatArray  # ``[Y, X]``
    at: Point

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        rows = [numbers(row, 4) for row in self.scores]
        (one,) = self.judge.properties
        return {
            "format": "distrlcc-stress-map",
            "version": 1,
            "policy": self.judge.contender.name,
            "against": self.judge.schemes,
            "property": one.key,
            "at": self.at.told(),
            **{name: getattr(self, name) for name in ("x", "y", "xs", "ys")},
            "scores": rows,
        }


def _values(name: str) -> tuple[Any, ...]:
    """Return up to `CELLS` values over the range of a dimension."""
    plain = replace(DIMENSIONS[name], share=1.0)
    if plain.choices:
        return ("", *dict.fromkeys(plain.choices))
    return tuple(dict.fromkeys(plain.value((k + 0.5) / CELLS) for k in range(CELLS)))


def map_of(
    judge: Judge, x: str, y: str, at: Point, processes: int, show: Callable[[float], None]
) -> Map:
    """Judge one property over two dimensions, all else as ``at`` has it; raises ConfigError."""
    xs, ys = _values(x), _values(y)
    grid = np.ndindex(len(ys), len(xs))
    points = {place: replace(at, **{x: xs[place[1]], y: ys[place[0]]}) for place in grid}
    inside = [place for place, point in points.items() if fits(point)]
    parts = [inside[k : k + CELLS] for k in range(0, len(inside), CELLS)]
    scores = np.full((len(ys), len(xs)), np.nan)
    with Workers(judge, processes) as workers:
        batches = [([points[place] for place in part],) for part in parts]
        for number, found in workers.map(Judge.__call__, batches):
            for place, row in zip(parts[number], found, strict=True):
                scores[place] = row[0]
            show((number + 1) / len(parts))
    if not np.isfinite(scores).any():
        raise ConfigError(
            f"{judge.properties[0].key} is judged on no link of this map; add what it needs: --at "
            "flows=8 for fair, rival=cubic for beside-cubic, jitter=5 for noise"
        )
    return Map(judge, x, y, xs, ys, scores, at)
