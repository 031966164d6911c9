"""Train a policy by a recipe, on one process or many.

distrlcc train quickstart --out runs/first
distrlcc train quickstart --set ppo.lr=3e-4 --set seed=7
distrlcc train quickstart --processes 2
distrlcc train --resume --out runs/first
distrlcc train quickstart --start-from policy.safetensors --world emulated --set num_envs=8
distrlcc train distrlcc --engine ray --topology actor-learner
torchrun --nproc-per-node 2 -m distrlcc train quickstart --out runs/first

Flags:
    $RUN
    --start-from POLICY sets start_from  start from its weights
    --load {gone}  --start-from POLICY takes its weights, --resume goes on with a run
    --print-config  print it as TOML and stop
    --processes N {1..4096} =1  equal processes on this machine; they share the environments
    $GROUP
    --engine {processes|ray} =processes  what runs the processes: this machine, or a Ray cluster

With --engine ray:
    --address auto|HOST:PORT  the cluster (default: Ray is started on this machine for this run)
    --topology {decentralized|actor-learner} =decentralized  equal processes, or one trainer with
        workers
    --nodes FILE {run_arguments.read_nodes} sets actors.nodes  TOML file with
        nodes = [[0, 1], [2]]: the links of the workers
    --learners K {1..4096} sets actors.learners  trainers, each with every K-th worker; their
        gradients are averaged (default: 1)
    --workers N {0..1e6} sets resources.workers  workers of an actor-learner run (default: one for
        each link)
    --max-workers N {0..1e6} sets resources.max_workers  workers or ranks while there is room, as
        when a machine joins
    --worker-cpus C {0.0..1e6} sets resources.worker_cpus  cores of each worker (default: 1, or an
        equal share)
    --worker-gpus G {0.0..1e6} sets resources.worker_gpus  GPUs of each worker, fractions too
    --learner-cpus C {0.0..1e6} sets resources.learner_cpus  cores of each learner (default: 1, or
        an equal share)
    --learner-gpus G {0.0..1e6} sets resources.learner_gpus  GPUs of each learner, at most 1
    --worker-resource+ NAME=AMOUNT sets resources.worker_custom  another resource of each worker
    --learner-resource+ NAME=AMOUNT sets resources.learner_custom  another resource of each learner
    --strategy {PACK|SPREAD|STRICT_PACK|STRICT_SPREAD} sets resources.strategy  placement (default:
        PACK)

Rules:
    --start-from: not with --resume; a run that goes on has its own weights
    --nodes --learners --workers: needs --topology actor-learner
    --worker-cpus --worker-gpus --worker-resource: needs --topology actor-learner
    --processes: not with --topology actor-learner; it has --workers
    --no-elastic --interface: not with --topology actor-learner; Ray has its workers
"""

import os
from argparse import Namespace

from distrlcc.cli.run_arguments import close_loopback, group_options, run_config, run_options
from distrlcc.config import to_toml
from distrlcc.errors import ConfigError
from distrlcc.parallel.launched import launched
from distrlcc.runs.run_config import RunConfig


def run(args: Namespace) -> int:
    """Train; 0 when done, 128 + the signal's number after a signal."""
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
    several = args.processes > 1 or args.gpu >= 0 or bool(args.restarts)
    if several and not (ray or by_launcher or args.print_config):
        close_loopback()
    config = run_config(args)
    if args.print_config:
        print(to_toml(config), end="")
        return 0
    # Train where the arguments say.
    if ray:
        return _on_ray(config, args)
    if by_launcher is not None or several:
        from distrlcc.parallel.start import run_launched, start_node

        options, group = run_options(args), group_options(args)
        if by_launcher is not None:
            return run_launched(config, options, group, by_launcher)
        return start_node(config, options, group, processes=args.processes)
    if args.interface:
        raise ConfigError("--interface needs --processes: a process alone reaches no other")
    from distrlcc.runs.run_state import env_run
    from distrlcc.runs.start import train_alone

    return train_alone(env_run(config), run_options(args))


def _on_ray(config: RunConfig, args: Namespace) -> int:
    from distrlcc.cluster.training import train_actors_on_ray, train_ranks_on_ray

    on = args.address or ""
    if args.topology == "actor-learner":
        return train_actors_on_ray(config, run_options(args), on, restarts=args.restarts)
    return train_ranks_on_ray(
        config, run_options(args), group_options(args), on, processes=args.processes
    )
