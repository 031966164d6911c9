"""Compare the compiled simulator with the reference on random scenarios."""

from __future__ import annotations

import argparse
import sys

from distrlcc.cli.parser import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    whole = number(1, whole=True)
    parser.add_argument("--scenarios", type=whole, default=200, metavar="N", help="how many")
    parser.add_argument("--seed", type=number(0, whole=True), default=0, help="which ones")


def run(args: argparse.Namespace) -> int:
    """Compare; 1 when anything differs."""
    from distrlcc.sim.check import compare, random_script

    mismatches = 0
    for k in range(args.scenarios):
        difference = compare(random_script(args.seed, k))
        if difference is not None:
            mismatches += 1
            print(f"scenario {k}: {difference}", file=sys.stderr)
    print(f"mismatches: {mismatches} of {args.scenarios}")
    return 1 if mismatches else 0
