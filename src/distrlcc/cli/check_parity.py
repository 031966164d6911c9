"""Check that several processes learn what one process learns, from the same seeds.

distrlcc check parity --processes 2
"""

from __future__ import annotations

import argparse

from distrlcc.cli.parser import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("recipe", nargs="?", default="quickstart", metavar="RECIPE")
    parser.add_argument(
        "--processes", type=number(2, 64, whole=True), default=2, metavar="N", help="default: 2"
    )
    parser.add_argument(
        "--updates", type=number(1, 10**6, whole=True), default=3, metavar="U", help="default: 3"
    )
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the configuration; may be repeated",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Check; 1 if they differ."""
    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe
    from distrlcc.runtime.parity import TOLERANCE, check_parity

    config = override(recipe(args.recipe), args.assignments)
    parity = check_parity(config, args.processes, args.updates)
    print(f"after {args.updates} updates, {args.processes} processes beside one:")
    print(f"  actions that are the same        {parity.same_actions:.6%}")
    print(f"  weights, relative difference     {parity.weights:.1e}")
    for name, difference in parity.metrics.items():
        print(f"  {name + ', relative difference':<32} {difference:.1e}")
    print(f"  ranks' weights equal bit for bit {'yes' if parity.ranks_equal else 'NO'}")
    print("the same" if parity.holds else f"NOT the same (bound {TOLERANCE:.0e})")
    return 0 if parity.holds else 1
