"""Follow quality against steps: policies that runs had on the way, on validation links.

python -m research curve snapshots/seed-0 snapshots/seed-1 --out curve.png --json curve.json

A folder holds one run's: copies of its policy.safetensors, each named by its steps, such as
25000000.safetensors. A line is the mean of the runs that were copied in all of them at steps which
differ by a twentieth at most; around it their least and greatest score.

Flags:
    runs* DIR {path}  one run's policies, named by their steps
    --suites SUITES =random,dynamic,cellular,shallow,silent,falls,slow,lossy,long  suites of one
        flow, scored by power
    --links N {1..} =64  validation links of each
    --out FILE {habits.picture}  draw the curves, .png or .svg
    $JSON
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from distrlcc.cli.output import emit_json
from distrlcc.errors import ConfigError
from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.figures import DPI, STYLE, encode
from distrlcc.evaluation.looks import BACKGROUND, INK
from distrlcc.evaluation.runner import evaluate
from distrlcc.files import write_atomically
from distrlcc.sim.suites import load_suite
from distrlcc.types import FloatArray

SUITES = "random,dynamic,cellular,shallow,silent,falls,slow,lossy,long"
_NEAR = 0.05
"""Part of a run's steps by which another's may differ that are drawn at one place."""
Curve = tuple[FloatArray, FloatArray]
"""Steps ``[P]`` and scores ``[P, runs]``."""


def run(args: Namespace) -> int:
    """Score, print and draw."""
    if not args.runs:
        raise ConfigError("no folder; expected one of each run, such as snapshots/seed-0")
    places, suites = together([_snapshots(folder) for folder in args.runs]), args.suites.split(",")
    scenarios = {name: load_suite(name).scenarios("validation", args.links) for name in suites}
    out = sys.stderr if args.json == "-" else sys.stdout
    found: list[FloatArray] = []
    print("steps".rjust(10), *(name.rjust(10) for name in suites), file=out)
    for files in places:
        policies = [contender_from_file(str(path)) for path in files]
        scores = np.array(
            [
                [evaluate(one, scenarios[name])[0].figures["power"].mean() for one in policies]
                for name in suites
            ]
        )
        found.append(scores)
        line = "".join(f"{mean:11.3f}" for mean in scores.mean(axis=1))
        print(f"{_steps(files[0]):10d}{line}", file=out, flush=True)
    steps = np.array([np.mean([_steps(path) for path in files]) for files in places])
    curves = {name: (steps, np.array(found)[:, k]) for k, name in enumerate(suites)}
    if args.out is not None:
        write_atomically(args.out, encode(draw(curves), args.out.suffix[1:]))
    drawn = {name: scores.tolist() for name, (_, scores) in curves.items()}
    emit_json(args.json, {"format": "distrlcc-curve", "steps": steps.tolist(), "power": drawn})
    return 0


def _steps(path: Path) -> int:
    return int(path.stem)


def _snapshots(folder: Path) -> list[Path]:
    """Return a run's policies in the order of their steps."""
    found = [path for path in folder.glob("*.safetensors") if path.stem.isdecimal()]
    if not found:
        raise ConfigError(f"{folder}: expected policies there, such as 25000000.safetensors")
    return sorted(found, key=_steps)


def together(runs: list[list[Path]]) -> list[list[Path]]:
    """Return a policy of each run, where all have one at nearly the steps of the first's."""
    places = []
    for first in runs[0]:
        files = [min(run, key=lambda path: abs(_steps(path) - _steps(first))) for run in runs]
        if all(abs(_steps(path) - _steps(first)) <= _NEAR * _steps(first) for path in files):
            places.append(files)
    if not places:
        raise ConfigError("the runs have no policies of nearly the same steps")
    return places


def draw(curves: dict[str, Curve]) -> Figure:
    """Draw a panel for each suite: mean, least and greatest of the runs."""
    with mpl.rc_context(STYLE):
        columns = min(len(curves), 3)
        rows = -(-len(curves) // columns)
        figure = Figure(figsize=(2.6 * columns, 1.7 * rows), dpi=DPI, layout="constrained")
        figure.set_facecolor(BACKGROUND)
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes, (name, (steps, scores)) in zip(panels, curves.items(), strict=False):
            millions = steps * 1e-6
            axes.fill_between(millions, scores.min(axis=1), scores.max(axis=1), alpha=0.25, lw=0)
            axes.plot(millions, scores.mean(axis=1), marker=".")
            axes.set_title(f"power: {name}", fontsize=7, loc="left", color=INK)
            axes.set_xlabel("steps (millions)")
        for axes in panels:
            axes.set_visible(False)
    return figure
