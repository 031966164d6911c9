"""Write a generated trace to a file in mahimahi's format.

distrlcc trace cellular:7 --out links/seven.trace
distrlcc trace poisson:12:1 --out links/poisson.trace
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from distrlcc.cli.parser import Parser


def add_arguments(parser: Parser) -> None:
    parser.add("trace TRACE", "cellular:SEED, poisson:MBPS:SEED, constant:MBPS or a file")
    parser.add("--out FILE", "where to write it", Path, required=True)


def run(args: Namespace) -> int:
    """Write the trace and say what it is."""
    from distrlcc.files import require_writable, write_atomically
    from distrlcc.sim.trace import load_trace

    trace = load_trace(args.trace)
    times = trace.times_ns // 1_000_000
    require_writable(args.out.resolve().parent)
    write_atomically(args.out, ("\n".join(str(time) for time in times) + "\n").encode())
    seconds = trace.period_ns / 1e9
    print(f"{args.out}: {seconds:.1f} s, {len(times)} opportunities, {trace.mean_mbps:.2f} Mbit/s")
    return 0
