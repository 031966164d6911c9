"""A map of one property over two dimensions of the space of links."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distrlcc.errors import ConfigError, unknown_name
from distrlcc.evaluation.scores import shown
from distrlcc.evaluation.search import Workers
from distrlcc.evaluation.space import DIMENSIONS, Point, fits
from distrlcc.evaluation.stress import Judge
from distrlcc.files import write_together
from distrlcc.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        rows = [[None if math.isnan(v) else float(f"{v:.4g}") for v in r] for r in self.scores]
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


def picture(found: Map) -> "Figure":
    """Draw a map: what fails is warm, what holds cold, and what is not judged is grey."""
    import matplotlib as mpl  # noqa: PLC0415 - judging needs none of it

    from distrlcc.evaluation.figures import STYLE, panels  # noqa: PLC0415
    from distrlcc.evaluation.looks import INK  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        figure, (axes,) = panels(4.0, 1.0)
        axes.grid(visible=False)
        axes.set_facecolor("silver")  # unlike what just holds, which is white
        logs = np.log10(np.clip(found.scores, 0.1, 10.0))
        image = axes.pcolormesh(logs, cmap="RdBu", vmin=-1.0, vmax=1.0)
        for axis, name, values in (
            (axes.xaxis, found.x, found.xs),
            (axes.yaxis, found.y, found.ys),
        ):
            places = range(0, len(values), max(1, len(values) // 6))
            texts = [
                v or "none" if isinstance(v, str) else f"{float(f'{v:.3g}'):,g}" for v in values
            ]
            axis.set_ticks([k + 0.5 for k in places], [texts[k] for k in places])
            axis.set_label_text(name)
        bar = figure.colorbar(image, ax=axes)
        bar.set_ticks([-1, -0.5, 0, 0.5, 1], labels=["0.1", "0.3", "1", "3", "10"])
        bar.set_label(f"{found.judge.properties[0].key}: 1 and more holds")
        others = ", ".join(map(shown, found.judge.schemes))
        title = f"{shown(found.judge.contender.name)} beside {others}"
        axes.set_title(title, fontsize=8, loc="left", color=INK)
    return figure


def write(folder: Path, found: Map) -> Path:
    """Write ``map.png`` and ``map.json`` into a folder; raises OutputError."""
    from distrlcc.evaluation.figures import encode  # noqa: PLC0415 - as in `picture`

    data = f"{json.dumps(found.to_json(), allow_nan=False)}\n".encode()
    write_together(folder, {"map.json": data, "map.png": encode(picture(found), "png")})
    return folder / "map.png"
