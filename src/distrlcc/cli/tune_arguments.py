"""The arguments that ``tune pbt`` and ``tune search`` share, and how both run."""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrlcc.cli.parser import number
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.cluster.session import RayOptions
    from distrlcc.runs.run_config import RunConfig
    from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig

METRICS = ("reward", "utilisation", "queueing_delay", "loss")
DISTRIBUTIONS = "uniform:a:b, loguniform:a:b, int:a:b or choice:x,y,…"


def add_tune_arguments(parser: argparse.ArgumentParser, flag: str) -> None:
    """Add the arguments of every tuner.

    Args:
        parser: The command's.
        flag: The option that takes ``KEY=DISTRIBUTION``.
    """
    add = parser.add_argument
    add("recipe", nargs="?", metavar="RECIPE", help="see 'distrlcc list recipes'")
    add_member_arguments(parser)
    what = f"what is tuned: {DISTRIBUTIONS}"
    add(flag, action="extend", nargs="+", default=[], metavar="KEY=DIST", dest="space", help=what)
    add("--seed", type=int, help="short for --set seed=N")
    add("--out", metavar="DIR", type=Path, help="folder (default: runs/tune-…)")
    add("--resume", action="store_true", help="go on with the tuner in --out")
    what = "what is compared, a mean over held-out links (default: reward)"
    add("--metric", choices=METRICS, default="reward", help=what)
    what = "default: max, for queueing_delay and loss min"
    add("--mode", choices=("max", "min"), help=what)
    what = "where members' checkpoints go: an NFS folder, s3://bucket/path … (default: in --out)"
    add("--storage", metavar="DIR|URL", default="", help=what)
    what = "checkpoints kept of each member (default: 4)"
    add("--keep", type=int, default=4, metavar="N", help=what)
    what = "times that a member that failed is started again (default: 2)"
    add("--failures", type=int, default=2, metavar="N", help=what)


def add_member_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what a member trains, and where."""
    add, assign = parser.add_argument, "change a key of the recipe; may be repeated"
    form: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}
    add("--set", **form, metavar="KEY=VALUE", dest="assignments", help=assign)
    what = "updates of one member (default: the recipe's total_steps)"
    add("--updates", type=number(1, whole=True), metavar="N", help=what)
    what = "cores of one member, may be a fraction"
    add("--cpus-per-trial", type=number(0.01, 1e4), metavar="C", help=what)
    what = "cores of this machine that are used (default: all)"
    add("--cpus", type=number(1, whole=True), metavar="C", help=what)
    what = "a Ray cluster's head, or auto (default: a Ray of its own on this machine)"
    add("--address", default="", metavar="HOST:PORT", help=what)


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


def tune_config(args: argparse.Namespace, method: PBTConfig | SearchConfig) -> TuneConfig:
    """Return the tuner that the arguments describe.

    Args:
        args: The arguments.
        method: How members' values are chosen.

    Raises:
        ConfigError: Something does not exist or fit.
    """
    from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig

    shrinks = args.metric in ("queueing_delay", "loss")
    cpus = args.cpus_per_trial or 1.0
    if isinstance(method, PBTConfig):
        cpus = core_share(args, method.population, synch=method.synch)
    return TuneConfig(
        run=member_config(args),
        space=tuple(args.space),
        storage=args.storage,
        name=f"{args.recipe}-{uuid.uuid4().hex[:8]}" if args.storage else "members",
        report_every=args.report_every,
        metric=args.metric,
        mode=args.mode or ("min" if shrinks else "max"),
        cpus_per_trial=cpus,
        keep=args.keep,
        failures=args.failures,
        pbt=method if isinstance(method, PBTConfig) else None,
        search=method if isinstance(method, SearchConfig) else None,
    )


def given(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Return the arguments that have the names of a dataclass's fields."""
    return {field.name: getattr(args, field.name) for field in fields(cls)}


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


def run_tuner(args: argparse.Namespace, command: str, build: Callable[[], TuneConfig]) -> int:
    """Begin or go on with a tuner; return the exit code.

    Args:
        args: The arguments.
        command: ``pbt`` or ``search``.
        build: Returns the configuration of a new tuner.

    Raises:
        DistrlccError: What does not fit, or what ended the tuner.
    """
    # Find what does not fit before what takes seconds to import.
    from distrlcc.tune.space import checked_space

    options = ray_options(args)
    config = _resumed(args, command) if args.resume else build()
    checked_space(config)
    from distrlcc.storage import storage_filesystem
    from distrlcc.tune.outcome import write_outcome
    from distrlcc.tune.tuner import open_folder, prepare, run

    prepare(config, options)
    if config.storage and not args.resume:
        storage_filesystem(config.storage)
    # Run, and write what was found.
    with open_folder(args.out, config, resume=args.resume) as folder:
        ended = run(config, folder, options, resume=args.resume, show=_show)
        text = write_outcome(folder.path, config, ended.failures, draw=not ended.signal)
    # Say how it ended.
    if text is not None:
        print(text, end="")
    if ended.signal:
        goes_on = f"distrlcc tune {command} --resume --out {folder.path}"
        _show(f"distrlcc: stopped; saved. Go on with: {goes_on}")
        return 128 + ended.signal
    if text is None:
        reasons = sorted(set(ended.failures.values()))
        raise ConfigError(f"every member failed: {'; '.join(reasons) or 'for no known reason'}")
    for name in ("best.toml", "policy.safetensors", "population.png", "table.txt"):
        print(f"{name.partition('.')[0]}: {folder.path / name}")
    return 0


def _resumed(args: argparse.Namespace, command: str) -> TuneConfig:
    """Return the configuration of the tuner in ``--out``; nothing else may be given."""
    from distrlcc.tune.tuner import read_config

    if args.out is None:
        raise ConfigError("--resume needs --out DIR, the tuner to go on with")
    if args.recipe is not None or args.assignments or args.space or args.updates is not None:
        raise ConfigError(
            f"--resume takes recipe, keys and length from {args.out / 'config.toml'}: give only "
            "--out (and --address or --cpus)"
        )
    config = read_config(args.out)
    own = "pbt" if config.pbt is not None else "search"
    if own != command:
        raise ConfigError(f"{args.out} is of 'distrlcc tune {own}': resume it with that")
    return config


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
