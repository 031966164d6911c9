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

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import Parser, number, whole
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

_RESOURCES = {
    "--workers N": (int, "workers of an actor-learner run (default: one for each link)"),
    "--max-workers N": (int, "workers or ranks while there is room, as when a machine joins"),
    "--worker-cpus C": (float, "cores of each worker (default: 1, or an equal share)"),
    "--worker-gpus G": (float, "GPUs of each worker, fractions too"),
    "--learner-cpus C": (float, "cores of each learner (default: 1, or an equal share)"),
    "--learner-gpus G": (float, "GPUs of each learner, at most 1"),
}
_CUSTOM = ("--worker-resource", "--learner-resource")
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    add = parser.add
    add("--load POLICY_FILE", "start from its weights; short for --set start_from=")
    add("--print-config", "print it as TOML and stop", bool)
    text = "equal processes on this machine; they share the environments"
    add("--processes N", text, whole(1, 4096), 1)
    add_group_arguments(parser)
    text = "what runs the processes: this machine, or a Ray cluster"
    add("--engine", text, default="processes", choices=("processes", "ray"))
    ray = parser.add_argument_group("with --engine ray")
    text = "the cluster (default: Ray is started on this machine for this run)"
    add("--address auto|HOST:PORT", text, to=ray)
    text = "equal processes, or one trainer with workers (default: decentralized)"
    add("--topology", text, to=ray, choices=("decentralized", "actor-learner"))
    text = "TOML file with nodes = [[0, 1], [2]]: the links of the workers"
    add("--nodes FILE", text, Path, to=ray)
    for flag, (kind, text) in _RESOURCES.items():
        add(flag, text, number(0, 1e6, whole=kind is int), to=ray)
    for flag in _CUSTOM:
        text = f"another resource of each {flag.split('-')[2]}; may be repeated"
        add(f"{flag} NAME=AMOUNT", text, to=ray, action="append")
    add("--strategy", "placement (default: PACK)", to=ray, choices=_STRATEGIES)


def run(args: Namespace) -> int:
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
        return _on_ray(config, args)
    flags = ("--address", "--topology", "--nodes", *_RESOURCES, *_CUSTOM, "--strategy")
    _refuse(args, flags, "needs --engine ray")
    if args.processes > 1 or args.gpu >= 0 or args.restarts:
        from distrlcc.parallel.start import start_node

        return start_node(config, run_options(args), group_options(args), processes=args.processes)
    from distrlcc.parallel.start import train_alone
    from distrlcc.runs.run_state import env_run

    return train_alone(env_run(config), run_options(args))


def _under_torchrun(config: RunConfig, args: Namespace) -> int:
    from distrlcc.parallel.start import run_under_torchrun

    if args.processes > 1:
        raise ConfigError("--processes under torchrun: give torchrun --nproc-per-node instead")
    if args.engine == "ray":
        raise ConfigError("--engine ray under torchrun: start it without torchrun")
    return run_under_torchrun(config, run_options(args), group_options(args))


def _on_ray(config: RunConfig, args: Namespace) -> int:
    """Train on Ray as the arguments say; return the exit code."""
    from distrlcc.cluster.ranks import train_ranks_on_ray
    from distrlcc.cluster.session import RayOptions
    from distrlcc.cluster.trainer import train_actors_on_ray

    config, on = _with_resources(config, args), RayOptions(args.address or "")
    if args.topology == "actor-learner":
        if args.processes > 1:
            raise ConfigError("--processes is for ranks; an actor-learner run has --workers")
        if args.no_elastic or args.interface:
            flag = "--no-elastic" if args.no_elastic else "--interface"
            raise ConfigError(f"{flag} is for decentralized runs; Ray has the workers here")
        if args.nodes is not None:
            from distrlcc.cli.node import read_nodes

            config = replace(config, actors=replace(config.actors, nodes=read_nodes(args.nodes)))
        return train_actors_on_ray(config, run_options(args), on, restarts=args.restarts)
    own = ("--nodes", "--workers", "--worker-cpus", "--worker-gpus", "--worker-resource")
    _refuse(args, own, "needs --topology actor-learner; ranks have --processes")
    return train_ranks_on_ray(
        config, run_options(args), group_options(args), on, processes=args.processes
    )


def _with_resources(config: RunConfig, args: Namespace) -> RunConfig:
    """Return the configuration with the resources that the arguments name."""
    named = {
        name: kind(getattr(args, name))
        for name, (kind, _) in zip(map(_name, _RESOURCES), _RESOURCES.values(), strict=True)
        if getattr(args, name) is not None
    }
    if args.gpu > 0:
        raise ConfigError("--gpu on Ray: 0 or --learner-gpus 1; Ray chooses which")
    if args.gpu == 0:
        named.setdefault("learner_gpus", 1.0)
    for name in map(_name, _CUSTOM):
        if getattr(args, name):
            named[name.replace("_resource", "_custom")] = tuple(getattr(args, name))
    if args.strategy is not None:
        named["strategy"] = args.strategy
    return replace(config, resources=replace(config.resources, **named))


def _refuse(args: Namespace, flags: Sequence[str], why: str) -> None:
    """Refuse arguments that mean nothing here."""
    for flag in flags:
        if getattr(args, _name(flag)) is not None:
            raise ConfigError(f"{flag.split()[0]} {why}")


def _name(flag: str) -> str:
    return flag.split()[0].removeprefix("--").replace("-", "_")
