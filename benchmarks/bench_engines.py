"""Measure the engines of actor-learner runs beside each other: threads, torch RPC and Ray.

python -m benchmarks engines --json -
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from distrlcc.cli.parser import number

_NAMES = ("in-process", "torch-rpc", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--engines", default=",".join(_NAMES), metavar="NAME,…",
        help=f"which (default: {','.join(_NAMES)})",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=number(1, 256, whole=True), default=4, help="of each (default: 4)"
    )
    parser.add_argument(
        "--seconds", type=number(0.5, 600.0), default=5.0,
        help="time for calls, and for segments, s (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", default="distrlcc", help="whose segments and weights (default: distrlcc)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the ratios are to in-process."""
    from benchmarks.engine_bench import ENGINES, EngineJob
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.errors import unknown_name
    from distrlcc.recipes.registry import recipe

    check_json_target(args.json)
    names = args.engines.split(",")
    for name in names:
        if name not in ENGINES:
            raise unknown_name("engine", name, ENGINES)
    job = EngineJob(recipe(args.recipe), args.workers, args.seconds)
    rows = {}
    for name in names:
        found = ENGINES[name](job)
        rows[name] = asdict(found) | {"workers": args.workers}
        if args.json == "-":
            continue
        base = rows.get("in-process")
        share = f" ({found.calls_per_second / base['calls_per_second']:.1%})" if base else ""
        print(
            f"{name:<10} started in {found.start_seconds:.1f} s; "
            f"{found.calls_per_second:,.0f} calls/s{share}; "
            f"{found.segments_per_second:,.0f} segments/s ({found.megabytes_per_second:,.0f} MB/s);"
            f" weights everywhere in {found.broadcast_ms_median:.1f} ms "
            f"(p99 {found.broadcast_ms_p99:.1f})"
        )
    emit_json(args.json, {"engines": rows})
    return 0
