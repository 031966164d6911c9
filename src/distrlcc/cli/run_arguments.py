"""The arguments that ``train`` and ``node`` share: which run, and how processes work together."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import Parser, number, whole
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runs.options import GroupOptions, RunOptions
    from distrlcc.runs.run_config import RunConfig


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
    add("--seed", "short for --set seed=N", int)
    text = (
        "where the links are: in the simulator, or emulated for real packets in real time; short "
        "for --set env.world="
    )
    add("--world", text, choices=("simulated", "emulated"))
    add("--no-tensorboard", "write no event files", bool)


def add_assignments(parser: Parser, what: str) -> None:
    """Add ``--set``."""
    text = f"change a key of the {what}; may be repeated"
    parser.add("--set KEY=VALUE", text, list, dest="assignments")


def add_group_arguments(parser: Parser) -> None:
    """Add the arguments of several processes."""
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
    add("--debug", "compare all weights after every update", bool)


def run_config(args: Namespace) -> RunConfig:
    """Return the configuration that the arguments say.

    Raises:
        ConfigError: There is no such recipe or key, or no run to resume.
    """
    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe
    from distrlcc.runs.run_config import RunConfig
    from distrlcc.runs.run_directory import RunDirectory

    assignments = list(args.assignments)
    if args.seed is not None:
        assignments.append(f"seed={args.seed}")
    if args.world is not None:
        assignments.append(f"env.world={args.world}")
    if args.debug:
        assignments.append("distributed.sync_check_every=1")
    if args.resume:
        assignments.insert(0, 'start_from=""')  # the checkpoint has newer weights
        if args.out is None:
            raise ConfigError(f"--resume needs --out DIR, the run to go on with{_stored(args)}")
        if args.storage and not (args.out / "config.toml").exists():
            began = _stored_config(args)
        else:
            began = RunDirectory.read_config(args.out, RunConfig)
        return override(began if args.recipe is None else recipe(args.recipe), assignments)
    taken = [word for word in args.assignments if "=" not in word]
    if args.recipe is None and taken:
        raise ConfigError(
            f"no recipe; {taken[-1]!r} was taken for one of --set's KEY=VALUE: put RECIPE before "
            "--set"
        )
    if args.recipe is None:
        raise ConfigError("no recipe; expected a name of 'distrlcc list recipes'")
    return override(recipe(args.recipe), assignments)


def _stored(args: Namespace) -> str:
    """Name the runs that the storage has."""
    from distrlcc.storage import stored_runs

    names = stored_runs(args.storage) if args.storage else []
    return f"; the storage has {', '.join(names[:10])}" if names else ""


def _stored_config(args: Namespace) -> RunConfig:
    from distrlcc.config import from_toml
    from distrlcc.runs.run_config import RunConfig

    storage = run_options(args).place("")
    assert storage is not None
    return from_toml(RunConfig, storage.read_config(), source=f"{storage}, config.toml")


def run_options(args: Namespace) -> RunOptions:
    """Return where a run writes."""
    from distrlcc.runs.options import RunOptions

    return RunOptions(
        args.out, resume=args.resume, tensorboard=not args.no_tensorboard, storage=args.storage
    )


def group_options(args: Namespace) -> GroupOptions:
    """Return how a run's processes work together."""
    from distrlcc.runs.options import GroupOptions

    return GroupOptions(
        elastic=not args.no_elastic and args.gpu < 0,  # NCCL ends a process whose peer died
        restarts=args.restarts,
        gpu=args.gpu,
        interface=args.interface,
        join_seconds=args.join_timeout,
    )
