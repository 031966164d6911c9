"""Check the simulator, the link model and the environment."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from distrlcc.cli.parser import Parser, whole


def add_sim(parser: Parser) -> None:
    """Add the arguments of ``check sim``."""
    parser.add("--scenarios", "how many", whole(1), 200, metavar="N")
    parser.add("--seed", "which ones", whole(0), 0)


def run_sim(args: Namespace) -> int:
    """Compare the compiled simulator with the reference on random scenarios."""
    from distrlcc.sim.check import compare, random_script

    mismatches = 0
    for k in range(args.scenarios):
        difference = compare(random_script(args.seed, k))
        if difference is not None:
            mismatches += 1
            print(f"scenario {k}: {difference}", file=sys.stderr)
    print(f"mismatches: {mismatches} of {args.scenarios}")
    return 1 if mismatches else 0


def add_link(parser: Parser) -> None:
    """Add the arguments of ``check link``."""
    parser.add("log", "log of mm-link", Path, metavar="LOG")
    parser.add("--trace", "the trace that the link ran", metavar="TRACE", required=True)


def run_link(args: Namespace) -> int:
    """Feed a mahimahi log's arrivals to the link model and compare every departure and drop."""
    from distrlcc.sim.link import read_log, replay
    from distrlcc.sim.trace import load_trace

    result = replay(read_log(args.log), load_trace(args.trace))
    for line in result.mismatches[:10]:
        print(line, file=sys.stderr)
    print(
        f"arrivals: {result.arrivals}, opportunities: {result.opportunities}, "
        f"departures: {result.departures}, drops: {result.drops}, "
        f"mismatches: {len(result.mismatches)}"
    )
    return 1 if result.mismatches else 0


def add_env(parser: Parser) -> None:
    """Take no arguments."""


def run_env(args: Namespace) -> int:
    """Run Gymnasium's checker and the project's own contract on every space and reward."""
    from distrlcc.env.contract import check_all

    failures = 0
    for name, problem in check_all():
        print(f"{name}: {problem or 'ok'}", file=sys.stderr if problem else sys.stdout)
        failures += problem is not None
    print(f"failures: {failures}")
    return 1 if failures else 0
