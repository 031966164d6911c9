"""Train a policy by a recipe, on one process or many.

distrlcc train quickstart --out runs/first
distrlcc train quickstart --set ppo.lr=3e-4 --set seed=7
distrlcc train quickstart --processes 2
distrlcc train --resume --out runs/first
distrlcc train quickstart --load policy.safetensors --world emulated --set num_envs=8
distrlcc train distrlcc --engine ray --topology actor-learner
torchrun --nproc-per-node 2 -m distrlcc train quickstart --out runs/first
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.cli.ray_arguments import add_ray_arguments, check_no_ray, train_on_ray
from distrlcc.cli.run_arguments import (
    add_group_arguments,
    add_run_arguments,
    group_options,
    run_config,
    run_options,
)
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runs.run_config import RunConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "--load", metavar="POLICY_FILE", help="start from its weights; short for --set start_from="
    )
    parser.add_argument("--print-config", action="store_true", help="print it as TOML and stop")
    parser.add_argument(
        "--processes", type=number(1, 4096, whole=True), default=1, metavar="N",
        help="equal processes on this machine; they share the environments (default: 1)",
    )  # fmt: skip
    add_group_arguments(parser)
    add_ray_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train; 0 when done, 128 + the signal's number after a signal."""
    from distrlcc.config import to_toml

    if args.load is not None:
        if args.resume:
            raise ConfigError("--load with --resume: a run that goes on has its own weights")
        args.assignments.append(f"start_from={json.dumps(args.load)}")
    config = run_config(args)
    if args.print_config:
        print(to_toml(config), end="")
        return 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _under_torchrun(config, args)
    if args.engine == "ray":
        return train_on_ray(config, args)
    check_no_ray(args)
    if args.processes > 1 or args.gpu >= 0 or args.restarts:
        from distrlcc.parallel.start import start_node

        return start_node(config, run_options(args), group_options(args), processes=args.processes)
    from distrlcc.parallel.start import train_alone
    from distrlcc.runs.run_state import env_run

    return train_alone(env_run(config), run_options(args))


def _under_torchrun(config: RunConfig, args: argparse.Namespace) -> int:
    from distrlcc.parallel.start import run_under_torchrun

    if args.processes > 1:
        raise ConfigError("--processes under torchrun: give torchrun --nproc-per-node instead")
    if args.engine == "ray":
        raise ConfigError("--engine ray under torchrun: start it without torchrun")
    return run_under_torchrun(config, run_options(args), group_options(args))
