"""Measure training, learning included: PPO with an MLP and with an LSTM, and DAgger, in turns.

One process, one thread. The cost is the time per environment step beside PPO's with an MLP of the
same widths, in the same turns.
"""

from __future__ import annotations

import argparse

from distrlcc.cli.parser import number

BASELINE = "ppo_mlp"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    parser.add_argument(
        "--seconds", type=number(0.1), default=45.0, help="time for all of them, s (default: 45)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from dataclasses import replace

    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.recipes.registry import recipe
    from distrlcc.runs.bench import bench

    check_json_target(args.json)
    mlp = recipe("quickstart")
    configs = {
        BASELINE: mlp,
        "ppo_lstm": replace(mlp, network=replace(mlp.network, kind="lstm")),
        "dagger_mlp": recipe("imitation"),
    }
    result = bench(configs, args.seconds, BASELINE)
    if args.json != "-":
        for name, row in result.items():
            print(
                f"{name}: {row['env_steps_per_second']:,.0f} env-steps/s (median), environment "
                f"{row['share_environment']:.0%}, inference {row['share_inference']:.0%}, "
                f"update {row['share_update']:.0%}; {row['cost']:.2f} times {BASELINE}'s cost"
            )
    emit_json(args.json, result)
    return 0
