"""List what can be named: recipes, suites, schemes, observations, actions, rewards."""

from __future__ import annotations

import argparse

KINDS = ("recipes", "suites", "schemes", "observations", "actions", "rewards")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")


def run(args: argparse.Namespace) -> int:
    """Print the names."""
    for kind in KINDS if args.kind is None else (args.kind,):
        print(f"{kind}: {', '.join(_names(kind))}")
    return 0


def _names(kind: str) -> list[str]:
    if kind == "recipes":
        from distrlcc.recipes.registry import RECIPES

        return list(RECIPES)
    if kind == "suites":
        from distrlcc.sim.suites import SUITES

        return list(SUITES)
    if kind == "schemes":
        from distrlcc.control.schemes import SCHEMES

        return [name for name in SCHEMES if name != "agent"]
    if kind == "observations":
        from distrlcc.env.observations import OBSERVATIONS

        return list(OBSERVATIONS)
    if kind == "actions":
        from distrlcc.env.actions import ACTIONS

        return list(ACTIONS)
    from distrlcc.env.rewards import REWARDS

    return list(REWARDS)
