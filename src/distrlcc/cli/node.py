"""Take part in a run on several machines; the same line on each but for the index.

distrlcc node --node-index 0 --node-num 2 --ip 10.0.0.1
distrlcc node --node-index 1 --node-num 2 --ip 10.0.0.1
distrlcc node quickstart --topology decentralized --node-index 0 --node-num 2 --ip 10.0.0.1
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.actor_arguments import add_actor_arguments, newest_run, with_actors
from distrlcc.cli.parser import number
from distrlcc.cli.run_arguments import (
    add_group_arguments,
    add_run_arguments,
    group_options,
    run_config,
    run_options,
)
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runs.options import Node

_DECENTRALIZED, _ACTORS = "decentralized", "actor-learner"
_PORTS = {_DECENTRALIZED: 29512, _ACTORS: 29513}
_ONLY = {
    _DECENTRALIZED: ["processes", "no_elastic", "restarts", "resume", "debug"],
    _ACTORS: ["load", "nodes", "envs_per_worker", "max_lag", "wait_workers", "tun", "allow_public"],
}
"""The arguments that only one topology has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    add = parser.add_argument
    text = (
        "actor-learner: workers act, a trainer on node 0 learns (default); decentralized: every "
        "process steps its environments and learns"
    )
    add("--topology", choices=(_ACTORS, _DECENTRALIZED), default=_ACTORS, help=text)
    text = "this machine's number from 0; M or more joins a decentralized run under way"
    kind = number(0, 4095, whole=True)
    add("--node-index", type=kind, required=True, metavar="I", help=text)
    kind, text = number(1, 4096, whole=True), "machines that the run begins with"
    add("--node-num", type=kind, required=True, metavar="M", help=text)
    add("--ip", "--IP", required=True, metavar="IP", help="address of node 0, the master")
    text = "the master's port, which takes the next one too (default: 29513; decentralized 29512)"
    add("--port", type=number(1, 65534, whole=True), metavar="P", help=text)
    text = "equal processes on each machine of a decentralized run (default: 1)"
    add("--processes", type=kind, metavar="N", help=text)
    add_group_arguments(parser)
    add_actor_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Take part until the run ends; 3 when the others are gone or out of reach."""
    from distrlcc.runs.options import Node

    other = _ACTORS if args.topology == _DECENTRALIZED else _DECENTRALIZED
    for name in _ONLY[other]:
        value = getattr(args, name)
        if value is not None and value is not False and (name, value) != ("restarts", 0):
            raise ConfigError(
                f"--{name.replace('_', '-')} is for --topology {other}, and this is {args.topology}"
            )
    port = args.port or _PORTS[args.topology]
    node = Node(args.node_index, args.node_num, args.ip, port)
    return _decentralized(args, node) if args.topology == _DECENTRALIZED else _actors(args, node)


def _decentralized(args: argparse.Namespace, node: Node) -> int:
    if args.node_index >= args.node_num and args.no_elastic:
        raise ConfigError(
            f"--node-index {args.node_index}: expected 0 to {args.node_num - 1}; only an elastic "
            "run takes late joiners"
        )
    if args.resume and args.node_index > 0:
        raise ConfigError("--resume is for node 0 alone, which sends the state to the others")
    config = run_config(args)
    from distrlcc.parallel.process_group import checked_device
    from distrlcc.parallel.start import start_node

    processes = args.processes or 1
    if args.gpu >= 0:
        for local in range(processes):
            checked_device(f"cuda:{args.gpu + local}")
    return start_node(
        config, run_options(args), group_options(args), node=node, processes=processes
    )


def _actors(args: argparse.Namespace, node: Node) -> int:
    from distrlcc.parallel.interface import tunnel_towards

    if args.node_index >= args.node_num:
        raise ConfigError(
            f"--node-index {args.node_index}: expected 0 to {args.node_num - 1}; over torch RPC "
            "no machine joins a run that is under way"
        )
    args.recipe = args.recipe or "distrlcc"
    if args.load is not None and args.node_index == 0:
        if args.out is not None:
            raise ConfigError("--load DIR says where to go on; leave --out away")
        args.out, args.resume = Path(args.load) if args.load else newest_run(args.recipe), True
        if not args.storage and not (args.out / "config.toml").is_file():
            raise ConfigError(f"--load {args.out}: no run stands there, which has a config.toml")
    if args.tun:
        if args.interface:
            raise ConfigError("--tun picks the interface; leave --interface away")
        args.interface = tunnel_towards(args.ip).name
    config = with_actors(run_config(args), args)
    from distrlcc.actors.start import start_actors

    args.gpu = _gpu(args)
    return start_actors(
        config, run_options(args), group_options(args), node, allow_public=args.allow_public
    )


def _gpu(args: argparse.Namespace) -> int:
    """Return the trainer's GPU; -1 where this machine has none, as DistRLCC's lines say 0."""
    import torch

    if args.gpu < 0 or args.node_index > 0 or torch.cuda.device_count():
        return int(args.gpu)
    sys.stderr.write(
        f"distrlcc: --gpu {args.gpu}: torch sees no GPU here; the trainer uses the CPU\n"
    )
    return -1
