"""Measure the speed of the simulator."""

from __future__ import annotations

from argparse import Namespace

from distrlcc.cli.output import add_json, check_json_target, emit_json
from distrlcc.cli.parser import Parser, whole


def add_sim(parser: Parser) -> None:
    """Add the arguments of ``bench sim``."""
    add_json(parser, "the figures")
    parser.add("--envs", "environments", whole(1), 256)
    parser.add("--steps", "steps of 10 ms", whole(1), 500)
    parser.add("--repeats", "best of so many", whole(1), 5)


def run_sim(args: Namespace) -> int:
    """Measure the simulator on one core, beside the reference in the same run."""
    from distrlcc.sim.bench import bench

    check_json_target(args.json)
    result = bench(args.envs, args.steps, args.repeats)
    if args.json != "-":
        for name, row in result["links"].items():
            print(
                f"{name}: {row['ns_per_packet']:.1f} ns/packet, "
                f"{row['env_steps_per_second'] / 1e6:.2f} M env-steps/s, "
                f"reference {row['reference_ns_per_packet']:.0f} ns/packet "
                f"({row['times_reference']:.0f} times)"
            )
    emit_json(args.json, result)
    return 0
