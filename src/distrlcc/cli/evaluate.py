"""Measure policies and schemes on a suite or on traces, and write a report.

distrlcc evaluate runs/first/policy.safetensors --against cubic,bbr,vegas --suite random
distrlcc evaluate policy.safetensors --trace Verizon-LTE-short.down --out report
distrlcc evaluate --against cubic,bbr,copa --suite dynamic --links 64 --json -
distrlcc evaluate runs/demo --world emulated --links 3 --out report     (real packets)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from distrlcc.cli.evaluate_arguments import (
    add_prefer,
    contenders_of,
    counted,
    drawn_links,
    report_info,
    scenarios_of,
)
from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

AGAINST = "cubic,bbr,vegas,copa,reno,oracle"
EMULATED_AGAINST = "kernel-cubic,kernel-bbr,kernel-reno"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="policy files, or runs")
    parser.add_argument(
        "--against", metavar="A,B,…",
        help=f"schemes (default: {AGAINST}; of real packets {EMULATED_AGAINST})",
    )  # fmt: skip
    parser.add_argument(
        "--world", choices=("simulated", "emulated"), default="simulated",
        help="emulated: real packets on emulated links, one after another in real time, beside "
        "the kernel's TCP as kernel-NAME",
    )  # fmt: skip
    parser.add_argument(
        "--others", choices=("ours", "kernel"),
        help="who an emulated link's other flows are: our schemes over UDP or the kernel's TCP of "
        "these names (default: beside kernel-NAME the kernel's where it has them, else ours)",
    )  # fmt: skip
    parser.add_argument(
        "--suite", metavar="SUITE", help="a suite, TOML file or folder of traces (default: random)"
    )
    parser.add_argument(
        "--trace", action="extend", nargs="+", default=[], metavar="FILE",
        help="trace files (run with 20 ms one way and a queue of 100 packets), or cellular:SEED",
    )  # fmt: skip
    add_prefer(parser)
    whole = number(1, whole=True)
    parser.add_argument("--links", type=whole, metavar="N", help="at most N links of the suite")
    parser.add_argument(
        "--seeds", type=whole, metavar="N", help="runs of each link (default: 5; of real packets 1)"
    )
    parser.add_argument(
        "--series", default="", metavar="LINK,…", help="links drawn over time (default: two)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the report there")
    parser.add_argument("--json", metavar="FILE", help="write all figures as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Evaluate, print the table, write the report."""
    from rich.console import Console

    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.evaluate.report import write_report
    from distrlcc.evaluate.runner import evaluate
    from distrlcc.evaluate.summary import print_table, summarise, to_json
    from distrlcc.files import require_writable

    real = args.world == "emulated"
    if args.against is None:
        args.against = EMULATED_AGAINST if real else AGAINST
    args.seeds = args.seeds or (1 if real else 5)
    if real:
        from distrlcc.cli.evaluate_emulated import run_emulated

        return run_emulated(args)
    if args.others is not None:
        raise ConfigError("--others is for --world emulated; simulated flows are always ours")
    contenders = contenders_of(args)
    scenarios = scenarios_of(args)
    drawn = drawn_links(args.series, scenarios)
    if args.out is not None:
        require_writable(args.out)
    check_json_target(args.json)
    scores, series = [], []
    for contender in contenders:
        print(f"evaluating {contender.name} on {counted(scenarios)} ...", file=sys.stderr)
        measured, recorded = evaluate(
            contender, scenarios, seeds=args.seeds, series_links=drawn if args.out else ()
        )
        scores.append(measured)
        series += recorded
    summary = summarise(scores)
    console = Console(stderr=args.json == "-")
    console.width = max(console.width, 80)  # a table that wraps is better than one without digits
    print_table(summary, console)
    emit_json(args.json, to_json(summary))
    if args.out is not None:
        page = write_report(args.out, scores, series, report_info(args))
        print(f"report: {page}", file=sys.stderr if args.json == "-" else sys.stdout)
    return 0
