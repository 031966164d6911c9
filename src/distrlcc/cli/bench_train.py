"""Measure training, learning included: PPO and DAgger with an MLP, one process, one thread."""

from __future__ import annotations

import argparse

from distrlcc.cli.parser import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    parser.add_argument(
        "--seconds", type=number(0.1), default=15.0, help="time for each learner, s"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.recipes.registry import recipe
    from distrlcc.runtime.bench import bench

    check_json_target(args.json)
    result = {
        name: bench(recipe(chosen), args.seconds)
        for name, chosen in (("ppo_mlp", "quickstart"), ("dagger_mlp", "imitation"))
    }
    if args.json != "-":
        for name, row in result.items():
            print(
                f"{name}: {row['env_steps_per_second']:,.0f} env-steps/s (median), environment "
                f"{row['share_environment']:.0%}, inference {row['share_inference']:.0%}, "
                f"update {row['share_update']:.0%}"
            )
    emit_json(args.json, result)
    return 0
