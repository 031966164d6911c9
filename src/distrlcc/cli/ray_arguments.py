"""The arguments of training on Ray: which cluster, which topology, and what each process needs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runs.run_config import RunConfig

_RESOURCES = {
    "--workers": ("N", int, "workers of an actor-learner run (default: one for each link)"),
    "--max-workers": ("N", int, "workers or ranks while there is room, as when a machine joins"),
    "--worker-cpus": ("C", float, "cores of each worker (default: 1, or an equal share)"),
    "--worker-gpus": ("G", float, "GPUs of each worker, fractions too"),
    "--learner-cpus": ("C", float, "cores of each learner (default: 1, or an equal share)"),
    "--learner-gpus": ("G", float, "GPUs of each learner, at most 1"),
}
_CUSTOM = ("--worker-resource", "--learner-resource")
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def add_ray_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only training on Ray has."""
    parser.add_argument(
        "--engine", choices=("processes", "ray"), default="processes",
        help="what runs the processes: this machine, or a Ray cluster (default: processes)",
    )  # fmt: skip
    ray = parser.add_argument_group("with --engine ray")
    ray.add_argument(
        "--address", metavar="auto|HOST:PORT",
        help="the cluster (default: Ray is started on this machine for this run)",
    )  # fmt: skip
    ray.add_argument(
        "--topology", choices=("decentralized", "actor-learner"),
        help="equal processes, or one trainer with workers (default: decentralized)",
    )  # fmt: skip
    ray.add_argument(
        "--nodes", metavar="FILE", type=Path,
        help="TOML file with nodes = [[0, 1], [2]]: the links of the workers",
    )  # fmt: skip
    for flag, (metavar, kind, text) in _RESOURCES.items():
        ray.add_argument(flag, metavar=metavar, type=number(0, 1e6, whole=kind is int), help=text)
    for flag in _CUSTOM:
        ray.add_argument(
            flag, metavar="NAME=AMOUNT", action="append",
            help=f"another resource of each {flag.split('-')[2]}; may be repeated",
        )  # fmt: skip
    ray.add_argument("--strategy", choices=_STRATEGIES, help="placement (default: PACK)")


def check_no_ray(args: argparse.Namespace) -> None:
    """Refuse arguments that mean nothing without Ray.

    Raises:
        ConfigError: There is one.
    """
    flags = ("--address", "--topology", "--nodes", *_RESOURCES, *_CUSTOM, "--strategy")
    for flag in flags:
        if getattr(args, _name(flag)) is not None:
            raise ConfigError(f"{flag} needs --engine ray")


def train_on_ray(config: RunConfig, args: argparse.Namespace) -> int:
    """Train on Ray as the arguments say; return the exit code.

    Raises:
        DistrlccError: See `train_actors_on_ray` and `train_ranks_on_ray`.
    """
    from distrlcc.cli.run_arguments import group_options, run_options
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
            from distrlcc.cli.actor_arguments import read_nodes

            config = replace(config, actors=replace(config.actors, nodes=read_nodes(args.nodes)))
        return train_actors_on_ray(config, run_options(args), on, restarts=args.restarts)
    for flag in ("--nodes", "--workers", "--worker-cpus", "--worker-gpus", "--worker-resource"):
        if getattr(args, _name(flag)) is not None:
            raise ConfigError(f"{flag} needs --topology actor-learner; ranks have --processes")
    return train_ranks_on_ray(
        config, run_options(args), group_options(args), on, processes=args.processes
    )


def _with_resources(config: RunConfig, args: argparse.Namespace) -> RunConfig:
    """Return the configuration with the resources that the arguments name."""
    named = {
        _name(flag): kind(getattr(args, _name(flag)))
        for flag, (_, kind, _) in _RESOURCES.items()
        if getattr(args, _name(flag)) is not None
    }
    if args.gpu > 0:
        raise ConfigError("--gpu on Ray: 0 or --learner-gpus 1; Ray chooses which")
    if args.gpu == 0:
        named.setdefault("learner_gpus", 1.0)
    for flag in _CUSTOM:
        if getattr(args, _name(flag)):
            named[_name(flag).replace("_resource", "_custom")] = tuple(getattr(args, _name(flag)))
    if args.strategy is not None:
        named["strategy"] = args.strategy
    return replace(config, resources=replace(config.resources, **named))


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
