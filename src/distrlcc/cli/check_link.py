"""Feed a mahimahi log's arrivals to the link model and compare every departure and drop."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("log", metavar="LOG", type=Path, help="log of mm-link")
    parser.add_argument(
        "--trace", required=True, metavar="TRACE", help="the trace that the link ran"
    )


def run(args: argparse.Namespace) -> int:
    """Replay; 1 when anything differs."""
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
