"""The arguments that ``tune pbt`` and ``tune search`` share, and how both run."""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.cluster.session import RayOptions
    from distrlcc.runs.run_config import RunConfig
    from distrlcc.tune.tune_config import TuneConfig

METRICS = ("reward", "utilisation", "queueing_delay", "loss")


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every tuner."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="see 'distrlcc list recipes'")
    add_member_arguments(parser)
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder (default: runs/tune-…)")
    parser.add_argument("--resume", action="store_true", help="go on with the tuner in --out")
    parser.add_argument(
        "--metric", choices=METRICS, default="reward",
        help="what is compared, a mean over held-out links (default: reward)",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=("max", "min"), help="default: max, for queueing_delay and loss min"
    )
    parser.add_argument(
        "--storage", metavar="DIR|URL", default="",
        help="where members' checkpoints go, such as an NFS folder or s3://bucket/path (default: "
        "checkpoints in --out)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=number(1, whole=True), default=4, metavar="N",
        help="checkpoints kept of each member (default: 4)",
    )  # fmt: skip
    parser.add_argument(
        "--failures", type=number(0, whole=True), default=2, metavar="N",
        help="times that a member that failed is started again (default: 2)",
    )  # fmt: skip


def add_member_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what a member trains, and where."""
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the recipe; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--updates", type=number(1, whole=True), metavar="N",
        help="updates of one member (default: the recipe's total_steps)",
    )  # fmt: skip
    parser.add_argument(
        "--cpus-per-trial", type=number(0.01, 1e4), metavar="C",
        help="cores of one member, may be a fraction",
    )  # fmt: skip
    parser.add_argument(
        "--cpus", type=number(1, whole=True), metavar="C",
        help="cores of this machine that are used (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--address", default="", metavar="HOST:PORT",
        help="a Ray cluster's head, or auto (default: a Ray of its own on this machine)",
    )  # fmt: skip


def member_config(args: argparse.Namespace) -> RunConfig:
    """Return what a member trains; its length is ``--updates`` or ``total_steps``, never a time.

    Raises:
        ConfigError: There is no such recipe or key.
    """
    from dataclasses import replace

    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe
    from distrlcc.tune.tune_config import steps_per_update

    if args.recipe is None:
        raise ConfigError("no recipe; expected a name of 'distrlcc list recipes', before --set")
    assignments = list(args.assignments)
    if args.seed is not None:
        assignments.append(f"seed={args.seed}")
    config = replace(override(recipe(args.recipe), assignments), max_seconds=0.0)
    if args.updates is not None:
        config = replace(config, total_steps=args.updates * steps_per_update(config))
    return config


def ray_options(args: argparse.Namespace) -> RayOptions:
    """Return which Ray is meant."""
    from distrlcc.cluster.session import RayOptions

    if args.address and args.cpus is not None:
        raise ConfigError("--cpus is of a Ray of its own: leave it out with --address")
    return RayOptions(args.address, cpus=args.cpus)


def core_share(args: argparse.Namespace, members: int, *, synch: bool) -> float:
    """Return the cores of a member, so that all members run at once on this machine.

    Where they are looked at together, Ray ends a member's process at each look, so that fewer
    processes that take turns cost less.
    """
    if args.cpus_per_trial is not None:
        return float(args.cpus_per_trial)
    if args.address or synch:
        return 1.0
    cores = args.cpus or len(os.sched_getaffinity(0))
    return max(round(min(1.0, cores / members), 3), 0.01)


def storage_name(args: argparse.Namespace) -> str:
    """Return the name of the members' folder in the storage, which others may share."""
    return f"{args.recipe}-{uuid.uuid4().hex[:8]}" if args.storage else "members"


def mode_of(args: argparse.Namespace) -> Literal["max", "min"]:
    """Return whether the metric is to grow or to shrink."""
    if args.mode is None:
        return "min" if args.metric in ("queueing_delay", "loss") else "max"
    return "min" if args.mode == "min" else "max"


def check_resume(args: argparse.Namespace, given: list[str]) -> None:
    """See that ``--resume`` comes alone.

    Args:
        args: The arguments.
        given: What was given of the command's own ``KEY=DISTRIBUTION`` words.

    Raises:
        ConfigError: It does not.
    """
    if args.out is None:
        raise ConfigError("--resume needs --out DIR, the tuner to go on with")
    if args.recipe is not None or args.assignments or given or args.updates is not None:
        raise ConfigError(
            f"--resume takes recipe, keys and length from {args.out / 'config.toml'}: give only "
            "--out (and --address or --cpus)"
        )


def run_tuner(
    args: argparse.Namespace, command: str, build: Callable[[], TuneConfig], given: list[str]
) -> int:
    """Begin or go on with a tuner; return the exit code.

    Args:
        args: The arguments.
        command: ``pbt`` or ``search``.
        build: Returns the configuration of a new tuner.
        given: See `check_resume`.

    Raises:
        DistrlccError: What does not fit, or what ended the tuner.
    """
    from distrlcc.tune import directory
    from distrlcc.tune.space import checked_space

    options = ray_options(args)
    if args.resume:
        check_resume(args, given)
        config = directory.read_config(args.out)
        own = "pbt" if config.pbt is not None else "search"
        if own != command:
            raise ConfigError(f"{args.out} is of 'distrlcc tune {own}': resume it with that")
    else:
        config = build()
    checked_space(config)  # before what takes seconds to import
    from distrlcc.storage.storage_url import storage_filesystem
    from distrlcc.tune.outcome import write_outcome
    from distrlcc.tune.tuner import prepare, run

    prepare(config, options)
    if args.resume:
        folder, config = directory.resume(args.out)
    else:
        if config.storage:
            storage_filesystem(config.storage)
        folder = directory.create(args.out, config)
    with folder:
        ended = run(
            config,
            folder,
            options,
            resume=args.resume,
            show=lambda line: print(line, file=sys.stderr, flush=True),
        )
        text = write_outcome(folder.path, config, ended.failures, draw=not ended.signal)
    if text is not None:
        print(text, end="")
    if ended.signal:
        print(
            f"distrlcc: stopped; saved. Go on with: distrlcc tune {command} --resume --out "
            f"{folder.path}",
            file=sys.stderr,
        )
        return 128 + ended.signal
    if text is None:
        reasons = sorted(set(ended.failures.values()))
        raise ConfigError(f"every member failed: {'; '.join(reasons) or 'for no known reason'}")
    for name in ("best.toml", "policy.safetensors", "population.png", "table.txt"):
        print(f"{name.partition('.')[0]}: {folder.path / name}")
    return 0
