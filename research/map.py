"""Map where a policy is good: over rates and RTTs, queues and random losses, flows and their BDPs.

python -m research map one --out map.png
python -m research map one --against cubic,bbr --json map.json

Constant links with one value in each cell, none of which is from a suite. A cell is marked where
one of the schemes that it is compared with does better by more than `MARGIN`.

Flags:
    policy POLICY  a policy's file, a run, or the name of a shipped one
    --against SCHEMES =cubic,bbr,vegas,copa  schemes to compare it with
    --out FILE {habits.picture}  draw the maps, .png or .svg
    $JSON
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from distrlcc.cli.output import emit_json
from distrlcc.evaluation.contender import Contender, contender_from_file, contender_from_scheme
from distrlcc.evaluation.fairness import fairness_of, run_shared
from distrlcc.evaluation.figures import DPI, STYLE, encode
from distrlcc.evaluation.looks import BACKGROUND, INK
from distrlcc.evaluation.runner import evaluate
from distrlcc.files import write_atomically
from distrlcc.sim.families import bdp_packets
from distrlcc.sim.scenario import Flow, Link, Scenario

MARGIN = 0.02
_SECONDS, _ROUND_TRIPS = 20.0, 60.0
"""Length of a run: so many seconds, and round trips, at least."""
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Map:
    """A grid of links, and what is scored on each."""

    name: str
    score: str
    x: tuple[str, tuple[float, ...]]
    """Its axis and the values along it."""
    y: tuple[str, tuple[float, ...]]
    link: Callable[[float, float], Scenario]
    """The scenario of a cell, given x and y."""
    measure: Callable[[Contender, list[Scenario]], Scores]
    """The score of each scenario."""

    def scores(self, contender: Contender) -> Scores:
        """Return a contender's scores ``[len(y), len(x)]``."""
        scenarios = [self.link(x, y) for y in self.y[1] for x in self.x[1]]
        return self.measure(contender, scenarios).reshape(len(self.y[1]), len(self.x[1]))


def _scenario(link: Link, rtt_ms: float, flows: Sequence[Flow] = (Flow(),)) -> Scenario:
    seconds = max(_SECONDS, _ROUND_TRIPS * rtt_ms * 1e-3)
    return Scenario("map", link, tuple(flows), duration_s=seconds, seed=1)


def _wide(rate: float, rtt: float) -> Scenario:
    queue = max(round(bdp_packets(rate, rtt)), 10)
    return _scenario(Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=queue), rtt)


def _lossy(queue: float, loss: float) -> Scenario:
    packets = max(round(queue * bdp_packets(30.0, 40.0)), 2)
    return _scenario(
        Link(rate_mbps=30.0, delay_ms=20.0, queue_packets=packets, loss=loss / 100), 40
    )


def _crowded(flows: float, packets: float) -> Scenario:
    """So many flows that begin within a second, each with so many packets of the BDP; RTT 40 ms."""
    count = int(flows)
    rate = count * packets / bdp_packets(1.0, 40.0)
    queue = max(round(count * packets), 2 * count)
    starts = [Flow(start_s=k / count) for k in range(count)]
    return _scenario(Link(rate_mbps=rate, delay_ms=20.0, queue_packets=queue), 40, starts)


def _power(contender: Contender, scenarios: list[Scenario]) -> Scores:
    return evaluate(contender, scenarios)[0].figures["power"][:, 0]


def _jain(contender: Contender, scenarios: list[Scenario]) -> Scores:
    return np.array([fairness_of(run)["jain"] for run in run_shared(contender, scenarios)])


MAPS = (
    Map(
        "one flow, a queue of one BDP",
        "power",
        ("rate (Mbit/s)", (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)),
        ("RTT (ms)", (2, 5, 10, 20, 50, 100, 200, 400, 800)),
        _wide,
        _power,
    ),
    Map(
        "one flow, 30 Mbit/s, 40 ms",
        "power",
        ("queue (BDP)", (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8)),
        ("random loss (%)", (0, 0.01, 0.1, 0.5, 1, 2, 3, 5)),
        _lossy,
        _power,
    ),
    Map(
        "flows that begin within 1 s, 40 ms, a queue of one BDP",
        "Jain index",
        ("flows", (2, 3, 4, 6, 8, 12, 16, 24, 32)),
        ("BDP of each (packets)", (2, 4, 8, 16, 32, 64)),
        _crowded,
        _jain,
    ),
)


def run(args: Namespace) -> int:
    """Score, print and draw."""
    policy = contender_from_file(args.policy)
    schemes = [contender_from_scheme(name) for name in args.against.split(",") if name]
    out, found = sys.stderr if args.json == "-" else sys.stdout, []
    for each in MAPS:
        own = each.scores(policy)
        others = {scheme.name: each.scores(scheme) for scheme in schemes}
        best = np.max(list(others.values()), axis=0) if others else np.full(own.shape, -np.inf)
        found.append((each, own, best > own + MARGIN, others))
        out.write(_table(each, own, found[-1][2]))
        out.flush()
    if args.out is not None:
        figure = draw([(each, own, behind) for each, own, behind, _ in found])
        write_atomically(args.out, encode(figure, args.out.suffix[1:]))
    maps = [
        {"name": each.name, "score": each.score, "x": each.x, "y": each.y}
        | {"values": {policy.name: own.tolist()} | {n: o.tolist() for n, o in others.items()}}
        for each, own, _, others in found
    ]
    emit_json(args.json, {"format": "distrlcc-map", "maps": maps})
    return 0


def _table(each: Map, own: Scores, behind: NDArray[np.bool_]) -> str:
    head = f"{each.name}: {each.score}; + where a scheme has more\n{each.y[0]:>22} \\ {each.x[0]}\n"
    lines = [" " * 22 + "".join(f"{x:7g}" for x in each.x[1])]
    for y, row, marks in zip(each.y[1], own, behind, strict=True):
        cells = (f"{v:6.2f}{'+' if m else ' '}" for v, m in zip(row, marks, strict=True))
        lines.append(f"{y:22g}" + "".join(cells))
    return head + "\n".join(lines) + "\n"


def draw(found: Sequence[tuple[Map, Scores, NDArray[np.bool_]]]) -> Figure:
    """Draw maps side by side; a cell says its score, and a + that a scheme has more."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.4 * len(found), 3.4), dpi=DPI, layout="constrained")
        figure.set_facecolor(BACKGROUND)
        FigureCanvasAgg(figure)
        grid = figure.subplots(1, len(found), squeeze=False)
        for axes, (each, own, behind) in zip(grid[0], found, strict=True):
            _panel(axes, each, own, behind)
    return figure


def _panel(axes: Axes, each: Map, own: Scores, behind: NDArray[np.bool_]) -> None:
    axes.imshow(own, origin="lower", aspect="auto", cmap="cividis", vmin=0.4, vmax=1.0)
    for (y, x), value in np.ndenumerate(own):
        text = f"{value:.2f}{'+' if behind[y, x] else ''}"
        color = "white" if value < 0.75 else "black"
        axes.text(x, y, text, ha="center", va="center", fontsize=5.5, color=color)
    for axis, (name, values) in ((axes.xaxis, each.x), (axes.yaxis, each.y)):
        axis.set_ticks(np.arange(len(values)), [f"{value:g}" for value in values])
        axis.set_label_text(name)
    axes.grid(visible=False)
    axes.set_title(f"{each.score}: {each.name}", fontsize=7, loc="left", color=INK)
