"""Take part in a run on several machines; the lines differ only in the index.

distrlcc node --node-index 0 --node-num 2 --ip 10.0.0.1
distrlcc node --node-index 1 --node-num 2 --ip 10.0.0.1
distrlcc node quickstart --topology decentralized --node-index 0 --node-num 2 --ip 10.0.0.1
distrlcc node quickstart --topology decentralized --hosts hosts.txt --ip 10.0.0.1

Flags:
    $RUN
    --topology {actor-learner|decentralized} =actor-learner  actor-learner: workers act, a trainer
        on node 0 learns (default); decentralized: every process steps its environments and learns
    --node-index I {0..4095}  this machine's number from 0; M or more joins a decentralized run
        under way
    --node-num M {1..4096}  machines at the start
    --hosts FILE  be node 0, and start the others by SSH: a host on each line, and behind it a
        number of processes, if any
    --remote-command COMMAND =distrlcc  the command on --hosts, if it is not on PATH
    --ip/--IP IP  address of node 0, the master
    --port P {1..65535}  the only port between machines (default: 29513; decentralized 29512)
    --processes N {1..4096}  processes on each machine of a decentralized run (default: 1)
    $GROUP
    --load? DIR  go on with this run, by default the newest in runs/ of the recipe (node 0)
    --nodes FILE {run_arguments.read_nodes} sets actors.nodes  TOML file with
        nodes = [[0, 1], [2]]: for each machine the links of its workers
    --learners K {1..4096} sets actors.learners  processes that learn, each from every K-th worker,
        on the machines in turn; their gradients are averaged (default: the recipe's)
    --envs-per-worker N {1..1048576} sets actors.envs_per_worker  environments that a worker steps
        (default: the recipe's)
    --max-lag U {0..1e6} sets actors.max_lag  updates a segment's policy may be behind (default: the
        recipe's)
    --wait-workers S {0.0..1e6} sets actors.wait_workers  how long to wait when no worker is left, s
        (default: the recipe's)
    --tun  use the tunnel (VPN) interface

Rules:
    --remote-command: needs --hosts
    --node-index --node-num: not with --hosts; it starts all, leave both out
    --processes --no-elastic --restarts --resume --debug: for --topology decentralized
    --load --nodes --learners --tun: for --topology actor-learner
    --envs-per-worker --max-lag --wait-workers: for --topology actor-learner
    --tun: not with --interface; it picks one, leave out --interface
    --load: not with --out; --load DIR says where to go on, leave out --out
"""

import os
import re
import secrets
import shlex
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from distrlcc.cli.output import note
from distrlcc.cli.run_arguments import close_loopback, group_options, run_config, run_options
from distrlcc.errors import ConfigError, DistrlccError
from distrlcc.recipes.registry import RECIPES, recipe
from distrlcc.runs.options import Node
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory

_DECENTRALIZED, _ACTORS = "decentralized", "actor-learner"
_PORTS = {_DECENTRALIZED: 29512, _ACTORS: 29513}


def run(args: Namespace) -> int:
    """Take part until the run ends; 3 when the others are gone or out of reach."""
    part = _decentralized if args.topology == _DECENTRALIZED else _actors
    port = args.port or _PORTS[args.topology]
    needed = ["--ip"] if args.hosts else ["--node-index", "--node-num", "--ip"]
    if missing := [flag for flag in needed if getattr(args, flag[2:].replace("-", "_")) is None]:
        more = "" if args.hosts else "; or --hosts FILE and --ip, to start all from this machine"
        raise ConfigError(f"the following arguments are required: {', '.join(missing)}{more}")
    if not args.hosts:
        return part(args, Node(args.node_index, args.node_num, args.ip, port, _guard(args, port)))
    from distrlcc.parallel.hosts import read_hosts, started

    hosts = read_hosts(args.hosts)
    args.node_index, args.node_num = 0, len(hosts) + 1
    counts = {count for count in (*hosts.values(), args.processes) if count}
    if len(counts) > 1 or (counts and part is _actors):
        text = "expected as many processes on each machine, and --topology decentralized"
        raise ConfigError(f"{args.hosts}: {text}")
    args.processes = max(counts, default=None)
    if args.recipe:
        run_config(args)  # refused before anything is started
    _guard(args, port)
    gone = ("--hosts", "--remote-command", "--processes", "--load", "--resume")
    words = _without(sys.argv[1:], *gone) + [f"--processes={args.processes}"] * bool(counts)
    words += [f"--node-num={args.node_num}"]
    lines = [[*words, f"--node-index={index}"] for index in range(1, args.node_num)]
    with started([*hosts], args.remote_command, lines):
        return part(args, Node(0, args.node_num, args.ip, port))


def _without(words: list[str], *flags: str) -> list[str]:
    """Return a command line's words without some flags; each except --resume has a value."""
    kept = []
    for before, word in zip(["", *words], words, strict=False):
        is_value = before in flags and before != "--resume" and not word.startswith("-")
        if not is_value and word.partition("=")[0] not in flags:
            kept.append(word)
    return kept


def _guard(args: Namespace, port: int) -> str:
    """See that there is a token where others come over the network; say how they get a new one."""
    from distrlcc.parallel.admission import TOKEN, guard, own_token
    from distrlcc.parallel.interface import check_place, is_loopback, resolve

    address = resolve(args.ip)
    if not args.node_index:
        check_place(address, port)
    if is_loopback(address):
        if args.topology == _ACTORS and args.node_num == 1:
            close_loopback()  # else it is where others find this one
        return ""
    # SSH would find that root's files are nobody's, and refuse them.
    close_loopback("it starts other machines by SSH" if args.hosts else "")
    if own_token() or args.node_index:
        guard(own_token(), address)
        return ""
    os.environ[TOKEN] = secrets.token_hex(32)
    line = shlex.join(["distrlcc", *_without(sys.argv[1:], "--resume")])
    line = re.sub("--node-index[= ][0-9]+", "--node-index I", line)
    line = f"{TOKEN}={os.environ[TOKEN]} {line}"
    return f"On each of the other machines, with its own number for I:\n\n  {line}\n\n"


def _decentralized(args: Namespace, node: Node) -> int:
    if args.node_index >= args.node_num and not args.elastic:
        raise ConfigError(
            f"--node-index {args.node_index}: expected 0 to {args.node_num - 1}; only an elastic "
            "run takes late joiners"
        )
    if args.resume and args.node_index > 0:
        raise ConfigError("--resume is for node 0 alone, which sends the state to the others")
    config = run_config(args)
    from distrlcc.parallel.start import start_node

    options, group = run_options(args), group_options(args)
    return start_node(config, options, group, node=node, processes=args.processes or 1)


def _actors(args: Namespace, node: Node) -> int:
    from distrlcc.parallel.interface import tunnel_towards

    if args.node_index >= args.node_num:
        raise ConfigError(
            f"--node-index {args.node_index}: expected 0 to {args.node_num - 1}; on Ray alone "
            "machines join actor-learner runs under way"
        )
    name = args.recipe or "distrlcc"
    if args.load is not None and args.node_index == 0:  # with the run's own configuration
        args.out, args.resume = Path(args.load) if args.load else newest_run(name), True
        args.recipe = None
        if not args.storage and not (args.out / "config.toml").is_file():
            raise ConfigError(f"--load {args.out}: no run is there (it has no config.toml)")
    else:
        args.recipe = name
    if args.tun:
        args.interface = tunnel_towards(args.ip).name
    # Which configuration; then what takes long to import.
    config = actors_config(args)
    import torch

    from distrlcc.actors.start import start_actors

    # DistRLCC's lines say --gpu 0, and not every trainer has one.
    if args.gpu >= 0 and args.node_index == 0 and not torch.cuda.device_count():
        note(f"distrlcc: --gpu {args.gpu}: torch sees no GPU here; the trainer uses the CPU")
        args.gpu = -1
    return start_actors(config, run_options(args), group_options(args), node)


def actors_config(args: Namespace) -> RunConfig:
    """Return the configuration, with lists of links for the machines that there are."""
    config = run_config(args)
    nodes, count = config.actors.nodes, args.node_num
    if args.load is not None and config.recipe in RECIPES:  # a run has the lists that it needed
        nodes = (*nodes, *recipe(config.recipe).actors.nodes[len(nodes) :])
    known = len(nodes)
    if count > known:
        raise ConfigError(
            f"--node-num {count}: there are lists of links for {known} machine"
            f"{'s' if known > 1 else ''} only; give one for each with --nodes FILE"
        )
    return replace(config, actors=replace(config.actors, nodes=nodes[:count]))


def newest_run(recipe: str) -> Path:
    """Return the newest run of a recipe in ``runs/``."""
    found = Path("runs").glob("*/checkpoints/latest.safetensors")
    for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(DistrlccError):
            if RunDirectory.read_config(path.parents[1], RunConfig).recipe == recipe:
                return path.parents[1]
    raise ConfigError(
        f"--load: no run of {recipe} with a checkpoint stands in runs/; give its folder"
    )
