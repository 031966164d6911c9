"""Compare learning curves: of several processes, and of one process from the same seeds.

python -m benchmarks parity quickstart --processes 2

Exit code 1: a mean lies outside of the other's 95% interval. What both learn in some updates is
compared with 'distrlcc check parity'.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from distrlcc.cli.output import Countdown
from distrlcc.cli.parser import Parser, whole
from distrlcc.cli.run_arguments import add_assignments
from distrlcc.config import override
from distrlcc.evaluation.bootstrap import mean_intervals
from distrlcc.parallel.parity import learn
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig
from distrlcc.types import FloatArray


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add("recipe RECIPE", default="quickstart", nargs="?")
    parser.add("--processes N", "", whole(2, 64), 2)
    parser.add("--seeds S", "two or more, as one gives no interval", whole(2, 100), 3)
    parser.add("--updates U", "updates of a curve", whole(4, 10**6), 40)
    add_assignments(parser, "configuration")


def run(args: Namespace) -> int:
    """Train, and print the curves."""
    config = override(recipe(args.recipe), args.assignments)
    work = f"{args.updates} updates in one process and in {args.processes}"
    seeds = Countdown(
        range(config.seed, config.seed + args.seeds),
        lambda seed: f"training seed {seed}, {work}",
    )
    found = learning_curves(config, args.processes, args.updates, seeds)
    curves = [intervals(each) for each in found]
    print(f"reward per step over {args.updates} updates, {args.seeds} seeds, 95% intervals:")
    for quarter, (one, several) in enumerate(zip(*curves, strict=True), 1):
        shown = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in (one, several))
        print(f"  quarter {quarter}: {'  '.join(shown)}")
    within = agree(*curves)
    print(f"learning curves {'' if within else 'NOT '}within each other's interval")
    return 0 if within else 1


def learning_curves(
    config: RunConfig, processes: int, updates: int, seeds: Iterable[int]
) -> tuple[FloatArray, FloatArray]:
    """Train from several seeds, in one process and in several.

    Returns:
        Of one and of several the mean reward per step in each quarter of the updates, ``[S, 4]``.
    """
    curves: list[list[FloatArray]] = [[], []]
    for seed in seeds:
        seeded = replace(config, seed=seed)
        for curve, count in zip(curves, (1, processes), strict=True):
            sums = np.sum([one.rewards for one in learn(seeded, updates, count)], axis=0)
            quarters = np.array_split(sums, 4)
            curve.append(np.array([part[:, 0].sum() / part[:, 1].sum() for part in quarters]))
    return np.array(curves[0]), np.array(curves[1])


def intervals(curves: FloatArray) -> FloatArray:
    """Return mean, low and high over S seeds of curves in Q parts, ``[S, Q]``: ``[Q, 3]``."""
    return mean_intervals(curves.T[:, None, :])


def agree(one: FloatArray, other: FloatArray) -> bool:
    """Return whether each one's means, of ``[Q, 3]``, lie within the other's intervals."""
    return all(
        bool(((b[:, 1] <= a[:, 0]) & (a[:, 0] <= b[:, 2])).all())
        for a, b in ((one, other), (other, one))
    )
