"""The arguments that ``train`` and ``node`` share: which run, and how processes work together."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from distrlcc.cli.parser import Parser, assignments, number, whole
from distrlcc.config import from_toml, override, read_toml
from distrlcc.errors import ConfigError
from distrlcc.filesystems import absolute
from distrlcc.recipes.registry import RECIPES, recipe
from distrlcc.runs.options import GroupOptions, RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.trackers import AUTO, Trackers
from distrlcc.storage import say, stored_runs


def add_run_arguments(parser: Parser) -> None:
    """Add the arguments that say what to train and where to write."""
    add = parser.add
    add("recipe RECIPE", "see 'distrlcc list recipes'", nargs="?")
    add_assignments(parser, "configuration, such as ppo.lr=3e-4")
    add("--out DIR", "run directory (default: runs/…)", Path)
    add("--resume", "go on with the run in --out", bool)
    text = (
        "keep a durable copy there: a folder, s3://bucket/path or the like; --resume takes a run "
        "that is not on this machine from there"
    )
    add("--storage URL", text, default="")
    add("--seed", "short for --set seed=N", int, key="seed")
    text = (
        "where the links are: in the simulator, or emulated for real packets in real time, our own "
        "over UDP or the kernel's TCP; short for --set env.world="
    )
    add("--world", text, key="env.world", choices=("simulated", "emulated", "kernel"))
    add("--no-tensorboard", "write no event files", bool)
    add_tracker_arguments(parser)


def add_tracker_arguments(parser: Parser) -> None:
    """Add where a run is logged besides its folder."""
    text = "log to Weights & Biases (default: its variables' project, or distrlcc)"
    parser.add("--wandb PROJECT", text, default="", nargs="?", const=AUTO)
    text = "log to MLflow's server or store (default: its variables', or mlflow.db here)"
    parser.add("--mlflow URI", text, default="", nargs="?", const=AUTO)


def add_assignments(parser: Parser, what: str) -> None:
    text = f"change a key of the {what}; may be repeated"
    parser.add("--set KEY=VALUE", text, list, dest="assignments")


def add_group_arguments(parser: Parser) -> None:
    add = parser.add
    add("--no-elastic", "end all processes when one of them is gone", bool)
    text = (
        "start processes that died again, K times; with --no-elastic all of them, from the last "
        "checkpoint"
    )
    add("--restarts K", text, whole(0), 0)
    text = "first GPU, one for each process (default: -1, the CPU); implies --no-elastic"
    add("--gpu G", text, int, -1)
    text = "network interface (default: the one that reaches the master)"
    add("--interface NAME", text, default="")
    add("--join-timeout S", "how long to wait for the master and the others, s", number(1.0), 120.0)
    text, every = "compare all weights after every update", "distributed.sync_check_every"
    add("--debug", text, bool, key=every, action="store_const", const=1)


def refuse(args: Namespace, flags: str, why: str) -> None:
    """Refuse flags, parted by spaces, that were given."""
    for flag in flags.split():
        if flag in args.flags:
            raise ConfigError(f"{flag} {why}")


def run_config(args: Namespace) -> RunConfig:
    """Return the configuration that the arguments say."""
    settings = assignments(args)
    if args.resume:
        if args.out is None:
            names = stored_runs(args.storage)[:10] if args.storage else []
            stored = f"; the storage has {', '.join(names)}" if names else ""
            raise ConfigError(f"--resume needs --out DIR, the run to go on with{stored}")
        place = run_options(args).place("")
        if place is not None and not (args.out / "config.toml").exists():
            began = from_toml(
                RunConfig, place.read_config(), source=f"{place}, config.toml", note=say
            )
        else:
            began = RunDirectory.read_config(args.out, RunConfig, say)
        began = began if args.recipe is None else recipe(args.recipe)
        # The checkpoint has newer weights than what it started from.
        return override(replace(began, start_from=""), settings)
    if args.recipe is None:
        taken = [word for word in args.assignments if "=" not in word]
        why = "expected a name of 'distrlcc list recipes'"
        flag = next((f for f in ("wandb", "mlflow") if getattr(args, f) in RECIPES), "")
        if flag:
            why = f"{getattr(args, flag)!r} was taken for --{flag}'s value: put RECIPE before it"
        elif taken:
            why = f"{taken[-1]!r} was taken for one of --set's KEY=VALUE: put RECIPE before --set"
        raise ConfigError(f"no recipe; {why}")
    return override(recipe(args.recipe), settings)


def run_options(args: Namespace) -> RunOptions:
    """Return where a run writes."""
    return RunOptions(
        args.out,
        resume=args.resume,
        tensorboard=not args.no_tensorboard,
        storage=absolute(args.storage),
        trackers=Trackers(args.wandb, args.mlflow),
    )


def group_options(args: Namespace) -> GroupOptions:
    """Return how a run's processes work together."""
    return GroupOptions(
        elastic=not args.no_elastic and args.gpu < 0,  # NCCL ends a process whose peer died
        restarts=args.restarts,
        gpu=args.gpu,
        interface=args.interface,
        join_seconds=args.join_timeout,
    )


def read_nodes(path: str) -> list[list[int | str]]:
    """Read each machine's links from a TOML file, as which DistRLCC's ``NODES = [[…]]`` reads."""
    expected = "expected nodes = [[0, 1], [2]], a list for each machine"
    data = {key.lower(): value for key, value in read_toml(path, f"; {expected}").items()}
    nodes = data.get("nodes") if set(data) == {"nodes"} else None
    if not isinstance(nodes, list) or not all(isinstance(node, list) for node in nodes):
        raise ConfigError(f"{path}: {expected}")
    for entry in (entry for node in nodes for entry in node):
        if isinstance(entry, bool) or not isinstance(entry, int | str):
            raise ConfigError(
                f"{path}: {entry!r} is no link; expected Indigo's link id or a name, such as 3 or "
                '"random"'
            )
    return nodes
