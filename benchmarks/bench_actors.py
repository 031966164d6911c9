"""Measure what workers deliver to a trainer on this machine, at the pace of real links and without.

python -m benchmarks actors --workers 1,2,4,8,16 --json -
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--workers", default="1,2,4,8,16", metavar="N,…",
        help="counts to measure (default: 1,2,4,8,16)",
    )  # fmt: skip
    parser.add_argument(
        "--pace", type=number(0.1, 1e4), default=10.0, metavar="MS",
        help="length of a paced step, ms (default: 10, as on a real link)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=number(5.0, 1e5), default=30.0,
        help="time for each measurement, s; its first third is not counted (default: 30)",
    )  # fmt: skip
    parser.add_argument("--recipe", default="distrlcc", help="default: distrlcc")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the recipe; may be repeated",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the baseline is the pace times the number of workers."""
    from benchmarks.delivery import measure_delivery
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe

    check_json_target(args.json)
    config = override(recipe(args.recipe), args.assignments)
    counts = _counts(args.workers)
    rows = []
    for workers in counts:
        for pace in (args.pace, 0.0):
            found = measure_delivery(config, workers, pace, args.seconds)
            ideal = workers * 1e3 / pace if pace else 0.0
            rows.append(
                asdict(found)
                | ({"delivered_share": found.steps_per_second / ideal} if ideal else {})
            )
            if args.json == "-":
                continue
            kind = f"paced to {pace:g} ms" if pace else "unpaced"
            share = f" ({found.steps_per_second / ideal:.1%} of {ideal:,.0f})" if ideal else ""
            late = (
                f", {found.late_share:.2%} of steps over 1 ms late (p99 {found.late_ms_p99:.2f} ms)"
                if pace
                else ""
            )
            print(
                f"{workers:>3} workers, {kind}: {found.steps_per_second:,.0f} steps/s{share}"
                f"{late}; trainer busy {found.busy_share:.0%}, lag {found.lag:.1f} updates, "
                f"weights everywhere in {found.publish_ms_median:.1f} ms "
                f"(p99 {found.publish_ms_p99:.1f})"
            )
    emit_json(args.json, {"actors": rows})
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1 or counts[-1] > 256:
        raise ConfigError(f"--workers {text}: expected counts from 1 to 256, as in 1,2,4")
    return counts
