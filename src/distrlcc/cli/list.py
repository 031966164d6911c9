"""List what can be named: recipes, suites, schemes, observations, actions, rewards."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

KINDS = ("recipes", "suites", "schemes", "observations", "actions", "rewards")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")


def run(args: argparse.Namespace) -> int:
    """Print the names."""
    from distrlcc.control.schemes import SCHEMES
    from distrlcc.env.actions import ACTIONS
    from distrlcc.env.observations import OBSERVATIONS
    from distrlcc.env.rewards import REWARDS
    from distrlcc.recipes.registry import RECIPES
    from distrlcc.sim.suites import SUITES

    schemes = [name for name in SCHEMES if name != "agent"]
    tables: list[Iterable[str]] = [RECIPES, SUITES, schemes, OBSERVATIONS, ACTIONS, REWARDS]
    for kind, names in zip(KINDS, tables, strict=True):
        if args.kind in (None, kind):
            print(f"{kind}: {', '.join(names)}")
    return 0
