"""Write a generated trace, or what a log of throughput says, to a file in mahimahi's format.

distrlcc trace cellular:7 --out links/seven.trace
distrlcc trace --from hsdpa report.2010-09-13_1003CEST.log --out links/metro.trace
distrlcc trace --from iperf3 measured.json --out links/measured.trace
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from distrlcc.cli.parser import Parser

KINDS = ("csv", "fcc", "hsdpa", "iperf3")


def add_arguments(parser: Parser) -> None:
    text = "cellular:SEED, poisson:MBPS:SEED, constant:MBPS or a file; with --from a log"
    parser.add("trace TRACE", text)
    text = (
        "TRACE is a log of throughput: seconds and Mbit/s in two columns (csv), FCC's "
        "curr_webget.csv, one of the Norwegian HSDPA logs, or what iperf3 -J writes"
    )
    parser.add("--from", text, dest="kind", choices=KINDS)
    parser.add("--out FILE", "where to write it", Path, required=True)


def run(args: Namespace) -> int:
    """Write the trace and say what it is."""
    from distrlcc.files import require_output, write_output
    from distrlcc.sim.throughput_log import read_throughput
    from distrlcc.sim.trace import load_trace

    require_output(args.out, args.trace)
    trace = read_throughput(args.trace, args.kind) if args.kind else load_trace(args.trace)
    times = trace.times_ns // 1_000_000
    write_output(args.out, ("\n".join(str(time) for time in times) + "\n").encode())
    seconds = trace.period_ns / 1e9
    print(f"{args.out}: {seconds:.1f} s, {len(times)} opportunities, {trace.mean_mbps:.2f} Mbit/s")
    return 0
