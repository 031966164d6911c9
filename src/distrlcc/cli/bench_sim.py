"""Measure the simulator on one core, beside the reference in the same run."""

from __future__ import annotations

import argparse

from distrlcc.cli.parser import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    parser.add_argument("--envs", type=number(1, whole=True), default=256, help="environments")
    parser.add_argument("--steps", type=number(1, whole=True), default=500, help="steps of 10 ms")
    parser.add_argument("--repeats", type=number(1, whole=True), default=5, help="best of so many")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from distrlcc.cli.output import check_json_target, emit_json
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
