"""The arguments that ``train`` and ``node`` share: which run, and how processes work together."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runs.options import GroupOptions, RunOptions
    from distrlcc.runs.run_config import RunConfig


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what to train and where to write."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="see 'distrlcc list recipes'")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the configuration, such as ppo.lr=3e-4; may be repeated",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", type=Path, help="run directory (default: runs/…)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument(
        "--storage", default="", metavar="URL",
        help="keep a durable copy there: a folder, s3://bucket/path or the like; --resume takes a "
        "run that is not on this machine from there",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument(
        "--world", choices=("simulated", "emulated"),
        help="where the links are: in the simulator, or emulated for real packets in real time; "
        "short for --set env.world=",
    )  # fmt: skip
    parser.add_argument("--no-tensorboard", action="store_true", help="write no event files")


def add_group_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of several processes."""
    parser.add_argument(
        "--no-elastic", action="store_true", help="end all processes when one of them is gone"
    )
    parser.add_argument(
        "--restarts", type=number(0, whole=True), default=0, metavar="K",
        help="start processes that died again, K times; with --no-elastic all of them, from the "
        "last checkpoint",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", type=int, default=-1, metavar="G",
        help="first GPU, one for each process (default: -1, the CPU); implies --no-elastic",
    )  # fmt: skip
    parser.add_argument(
        "--interface", default="", metavar="NAME",
        help="network interface (default: the one that reaches the master)",
    )  # fmt: skip
    parser.add_argument(
        "--join-timeout", type=number(1.0), default=120.0, metavar="S",
        help="how long to wait for the master and the others, s (default: 120)",
    )  # fmt: skip
    parser.add_argument(
        "--debug", action="store_true", help="compare all weights after every update"
    )


def run_config(args: argparse.Namespace) -> RunConfig:
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


def _stored(args: argparse.Namespace) -> str:
    """Name the runs that the storage has."""
    from distrlcc.storage import stored_runs

    names = stored_runs(args.storage) if args.storage else []
    return f"; the storage has {', '.join(names[:10])}" if names else ""


def _stored_config(args: argparse.Namespace) -> RunConfig:
    from distrlcc.config import from_toml
    from distrlcc.runs.run_config import RunConfig

    storage = run_options(args).place("")
    assert storage is not None
    return from_toml(RunConfig, storage.read_config(), source=f"{storage}, config.toml")


def run_options(args: argparse.Namespace) -> RunOptions:
    """Return where a run writes."""
    from distrlcc.runs.options import RunOptions

    return RunOptions(
        args.out,
        resume=args.resume,
        tensorboard=not args.no_tensorboard,
        storage=args.storage,
    )


def group_options(args: argparse.Namespace) -> GroupOptions:
    """Return how a run's processes work together."""
    from distrlcc.runs.options import GroupOptions

    return GroupOptions(
        elastic=not args.no_elastic and args.gpu < 0,  # NCCL ends a process whose peer died
        restarts=args.restarts,
        gpu=args.gpu,
        interface=args.interface,
        join_seconds=args.join_timeout,
    )
