"""Train a policy by a recipe, on one process or many.

distrlcc train quickstart --out runs/first
distrlcc train quickstart --set ppo.lr=3e-4 --set seed=7
distrlcc train quickstart --processes 2
distrlcc train --resume --out runs/first
distrlcc train quickstart --start-from policy.safetensors --world emulated --set num_envs=8
distrlcc train distrlcc --engine ray --topology actor-learner
torchrun --nproc-per-node 2 -m distrlcc train quickstart --out runs/first
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import get_args, get_type_hints

from distrlcc.cli.parser import Parser, number, whole
from distrlcc.cli.run_arguments import (
    add_group_arguments,
    add_run_arguments,
    group_options,
    read_nodes,
    refuse,
    run_config,
    run_options,
)
from distrlcc.config import to_toml
from distrlcc.errors import ConfigError
from distrlcc.parallel.launched import launched
from distrlcc.runs.run_config import ResourcesConfig, RunConfig

_AMOUNTS = {
    "--workers N": "workers of an actor-learner run (default: one for each link)",
    "--max-workers N": "workers or ranks while there is room, as when a machine joins",
    "--worker-cpus C": "cores of each worker (default: 1, or an equal share)",
    "--worker-gpus G": "GPUs of each worker, fractions too",
    "--learner-cpus C": "cores of each learner (default: 1, or an equal share)",
    "--learner-gpus G": "GPUs of each learner, at most 1",
}
_OF_ACTORS = "--nodes --workers --worker-cpus --worker-gpus --worker-resource"
_OF_RAY = (
    f"--address --topology {_OF_ACTORS} --max-workers --learner-cpus --learner-gpus "
    "--learner-resource --strategy"
)


def add_arguments(parser: Parser) -> None:
    add_run_arguments(parser)
    add = parser.add
    text = "start from its weights; short for --set start_from="
    add("--start-from POLICY", text, key="start_from")
    parser.gone("--load", ": --start-from POLICY takes its weights, --resume goes on with a run")
    add("--print-config", "print it as TOML and stop", bool)
    text = "equal processes on this machine; they share the environments"
    add("--processes N", text, whole(1, 4096), 1)
    add_group_arguments(parser)
    text = "what runs the processes: this machine, or a Ray cluster"
    add("--engine", text, default="processes", choices=("processes", "ray"))
    # What only Ray has.
    ray = parser.add_argument_group("with --engine ray")
    text = "the cluster (default: Ray is started on this machine for this run)"
    add("--address auto|HOST:PORT", text, to=ray)
    text = "equal processes, or one trainer with workers (default: decentralized)"
    add("--topology", text, to=ray, choices=("decentralized", "actor-learner"))
    text = "TOML file with nodes = [[0, 1], [2]]: the links of the workers"
    add("--nodes FILE", text, read_nodes, to=ray, key="actors.nodes")
    for flag, text in _AMOUNTS.items():
        key = "resources." + flag.split()[0].removeprefix("--").replace("-", "_")
        add(flag, text, number(0, 1e6, whole="workers" in flag), to=ray, key=key)
    for role in ("worker", "learner"):
        text, key = f"another resource of each {role}; may be repeated", f"resources.{role}_custom"
        add(f"--{role}-resource NAME=AMOUNT", text, to=ray, key=key, action="append")
    known = get_args(get_type_hints(ResourcesConfig)["strategy"])
    text, key = "placement (default: PACK)", "resources.strategy"
    add("--strategy", text, to=ray, key=key, choices=known)


def run(args: Namespace) -> int:
    """Train; 0 when done, 128 + the signal's number after a signal."""
    # Find what does not fit together.
    if args.start_from is not None and args.resume:
        raise ConfigError("--start-from with --resume: a run that goes on has its own weights")
    by_launcher, ray = launched(os.environ), args.engine == "ray"
    if by_launcher is not None and (args.processes > 1 or ray):
        found = "--engine ray" if ray else "--processes"
        raise ConfigError(
            f"{found} under a launcher, which set RANK and WORLD_SIZE: have it start more "
            "processes, such as torchrun --nproc-per-node, or unset these"
        )
    if ray:
        if args.gpu > 0:
            raise ConfigError("--gpu on Ray: 0 or --learner-gpus 1; Ray chooses which")
        if args.gpu == 0 and args.learner_gpus is None:
            args.learner_gpus = 1.0
    config = run_config(args)
    if args.print_config:
        print(to_toml(config), end="")
        return 0
    # Train where the arguments say.
    if ray:
        return _on_ray(config, args)
    from distrlcc.parallel.start import run_launched, start_node, train_alone
    from distrlcc.runs.run_state import env_run

    refuse(args, _OF_RAY, "needs --engine ray")
    if by_launcher is not None:
        return run_launched(config, run_options(args), group_options(args), by_launcher)
    if args.processes > 1 or args.gpu >= 0 or args.restarts:
        return start_node(config, run_options(args), group_options(args), processes=args.processes)
    if args.interface:
        raise ConfigError("--interface needs --processes: a process alone reaches no other")
    return train_alone(env_run(config), run_options(args))


def _on_ray(config: RunConfig, args: Namespace) -> int:
    from distrlcc.cluster.training import train_actors_on_ray, train_ranks_on_ray

    on = args.address or ""
    if args.topology == "actor-learner":
        if args.processes > 1:
            raise ConfigError("--processes is for ranks; an actor-learner run has --workers")
        if args.no_elastic or args.interface:
            flag = "--no-elastic" if args.no_elastic else "--interface"
            raise ConfigError(f"{flag} is for decentralized runs; Ray has the workers here")
        return train_actors_on_ray(config, run_options(args), on, restarts=args.restarts)
    refuse(args, _OF_ACTORS, "needs --topology actor-learner; ranks have --processes")
    return train_ranks_on_ray(
        config, run_options(args), group_options(args), on, processes=args.processes
    )
