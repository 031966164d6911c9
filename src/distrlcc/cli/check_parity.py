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
        "--seeds", type=number(0, 100, whole=True), default=3, metavar="S",
        help="seeds whose learning curves are compared as well; 0: none (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--curve-updates", type=number(4, 10**6, whole=True), default=40, metavar="U",
        help="updates of a learning curve (default: 40)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the configuration; may be repeated",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Check; 1 if they differ."""
    from distrlcc.config import override
    from distrlcc.evaluate.bootstrap import Curves
    from distrlcc.parallel.parity import TOLERANCE, check_parity, learning_curves
    from distrlcc.recipes.registry import recipe

    config = override(recipe(args.recipe), args.assignments)
    parity = check_parity(config, args.processes, args.updates)
    print(f"after {args.updates} updates, {args.processes} processes beside one:")
    print(f"  actions that are the same        {parity.same_actions:.6%}")
    print(f"  weights, relative difference     {parity.weights:.1e}")
    for name, difference in parity.metrics.items():
        print(f"  {name + ', relative difference':<32} {difference:.1e}")
    print(f"  ranks' weights equal bit for bit {'yes' if parity.ranks_equal else 'NO'}")
    print("the same" if parity.holds else f"NOT the same (bound {TOLERANCE:.0e})")
    if not parity.holds or not args.seeds:
        return 0 if parity.holds else 1
    curves = Curves(*learning_curves(config, args.processes, args.curve_updates, args.seeds))
    print(f"reward per step over {args.curve_updates} updates, {args.seeds} seeds, 95% intervals:")
    for quarter, (one, several) in enumerate(zip(*curves.intervals(), strict=True), 1):
        shown = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in (one, several))
        print(f"  quarter {quarter}: {'  '.join(shown)}")
    agree = "within each other's interval" if curves.agree else "NOT within each other's interval"
    print(f"learning curves {agree}")
    return 0 if curves.agree else 1
