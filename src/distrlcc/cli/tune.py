"""Tune recipes: population-based training, and search with Optuna's samplers."""

from __future__ import annotations

import os
import uuid
from argparse import Namespace
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

from distrlcc.cli.output import note
from distrlcc.cli.parser import Parser, assignments, number, whole
from distrlcc.cli.run_arguments import add_assignments
from distrlcc.config import override
from distrlcc.errors import ConfigError, DistrlccError
from distrlcc.filesystems import absolute, storage_filesystem
from distrlcc.recipes.registry import recipe
from distrlcc.tune.space import FORMS, check_space
from distrlcc.tune.tune_config import (
    Metric,
    PBTConfig,
    Sampler,
    SearchConfig,
    TimeAttr,
    TuneConfig,
    steps_per_update,
)


def add_pbt(parser: Parser) -> None:
    _add_tuner(parser, "--mutate")
    add = parser.add
    add("--population N", "members", int, 8)
    add("--interval T", "between two looks at a member, in --time-attr", float, 20.0)
    add("--time-attr", "what progress is measured by", default="update", choices=get_args(TimeAttr))
    text = "updates between two reports (default: the interval where that is in updates, or 20)"
    add("--report-every N", text, int)
    add("--burn-in T", "before the first look, in --time-attr (default: 0)", float, 0.0)
    add("--quantile Q", "share of the worst, which copy as many of the best; 0 to 0.5", float, 0.25)
    add("--resample P", "probability of drawing a value anew instead of perturbing it", float, 0.25)
    text = "one of them is multiplied with a number to perturb it"
    add("--factors F,F", text, _factors, "1.2,0.8")
    text = "a function of your own: takes the perturbed values by key, returns them"
    add("--explore REF", text, default="")
    add("--synch", "look at all members at the same time", bool)
    parser.gone("--no-require-attrs", ": members report both score and time")
    add("--no-log-config", "write no pbt_global.txt of Ray's", bool, dest="log_config")


def run_pbt(args: Namespace) -> int:
    """Train a population whose worst members copy the best and change their values (PBT, Ray Tune).

    distrlcc tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune pbt quickstart --updates 200 --synch --mutate ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune pbt quickstart --mutate ppo.gamma=uniform:0.9:0.99 ppo.num_epochs=int:1:6
    distrlcc tune pbt --resume --out runs/tune-quickstart-20260131-120000
    """
    return _run_tuner(args, "pbt")


def _pbt_config(args: Namespace) -> PBTConfig:
    """Return the settings of a population; the interval of its reports is set where none is."""
    pbt = PBTConfig(**{field.name: getattr(args, field.name) for field in fields(PBTConfig)})
    if args.report_every is None and args.time_attr != "update":
        args.report_every = 20
    elif args.report_every is None:
        if args.interval < 1 or not args.interval.is_integer():
            raise ConfigError(
                f"--interval {args.interval:g}: expected a whole number of updates, 1 or more"
            )
        args.report_every = int(args.interval)
    return pbt


def _factors(text: str) -> tuple[float, float]:
    try:
        first, second = (float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--factors {text!r}: expected two numbers, as in 1.2,0.8") from None
    return first, second


def add_search(parser: Parser) -> None:
    _add_tuner(parser, "--search")
    add = parser.add
    add("--trials N", "", int, 16)
    add("--sampler", "Optuna's sampler", default="tpe", choices=get_args(Sampler))
    add("--report-every N", "updates between two reports", int, 20)
    parser.gone("--interval", ": it is --report-every N")
    add("--no-asha", "run every trial to its end", bool, dest="asha")
    add("--grace N", "updates that every trial has (default: two reports)", int)
    add("--reduction R", "at each of ASHA's rungs one of R trials goes on", float, 3.0)
    add("--brackets N", "", int, 1)
    text = "trials at the same time (default: as many as there are cores for)"
    add("--concurrent N", text, int, 0)


def run_search(args: Namespace) -> int:
    """Search for a recipe's values with Optuna's samplers, and stop bad trials early (ASHA).

    distrlcc tune search quickstart --trials 16 --updates 200 --search ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune search quickstart --sampler gp --search network.hidden=choice:[32,32],[64,64]
    distrlcc tune search --resume --out runs/tune-quickstart-20260131-120000
    """
    return _run_tuner(args, "search")


def _add_tuner(parser: Parser, flag: str) -> None:
    """Add the arguments of every tuner; the flag takes ``KEY=DISTRIBUTION``."""
    add = parser.add
    add("recipe RECIPE", "see 'distrlcc list recipes'", nargs="?")
    add_assignments(parser, "recipe")
    add("--updates N", "updates of one member (default: the recipe's total_steps)", whole(1))
    add("--cpus-per-trial C", "cores of one member, may be a fraction", number(0.01, 1e4))
    add("--cpus C", "cores of this machine that are used (default: all)", whole(1))
    text = "a Ray cluster's head, or auto (default: a Ray of its own on this machine)"
    add("--address HOST:PORT", text, default="")
    add(f"{flag} KEY=DIST", f"what is tuned: {FORMS}", list, dest="space")
    add("--seed", "short for --set seed=N", int, key="seed")
    add("--out DIR", "folder (default: runs/tune-…)", Path)
    add("--resume", "go on with the tuner in --out", bool)
    text = "what is compared, a mean over held-out links"
    add("--metric", text, default="reward", choices=get_args(Metric))
    add("--mode", "default: max, for queueing_delay and loss min", choices=("max", "min"))
    text = "where members' checkpoints go: an NFS folder, s3://bucket/path … (default: in --out)"
    add("--storage DIR|URL", text, default="")
    add("--keep-checkpoints N", "checkpoints kept of each member", int, 4)
    parser.gone("--keep", ": it is --keep-checkpoints N")
    text = "a function of your own, ./file.py:name: takes a report, says that a member is done"
    add("--stop REF", text, default="")
    add("--failures N", "times that a member that failed is started again", int, 2)


def _tune_config(args: Namespace, command: str) -> TuneConfig:
    """Return the new tuner that the arguments describe.

    A member's length is ``--updates`` or the recipe's ``total_steps``, never a time.
    """
    pbt = search = None
    if command == "pbt":
        pbt = _pbt_config(args)
    else:
        args.grace = 2 * args.report_every if args.grace is None else args.grace
        search = SearchConfig(**{f.name: getattr(args, f.name) for f in fields(SearchConfig)})
    # What each member trains.
    if args.recipe is None:
        raise ConfigError("no recipe; expected a name of 'distrlcc list recipes', before --set")
    config = replace(override(recipe(args.recipe), assignments(args)), max_seconds=0.0)
    if args.updates is not None:
        config = replace(config, total_steps=args.updates * steps_per_update(config))
    shrinks = args.metric in ("queueing_delay", "loss")
    return TuneConfig(
        run=config,
        space=tuple(args.space),
        storage=absolute(args.storage),
        name=f"{config.recipe}-{uuid.uuid4().hex[:8]}" if args.storage else "members",
        report_every=args.report_every,
        metric=args.metric,
        mode=args.mode or ("min" if shrinks else "max"),
        cpus_per_trial=_core_share(args, pbt),
        keep=args.keep_checkpoints,
        failures=args.failures,
        stop=args.stop,
        pbt=pbt,
        search=search,
    )


def _core_share(args: Namespace, pbt: PBTConfig | None) -> float:
    """Return the cores of a member, so that a population runs at once on this machine.

    Where members are looked at together, Ray ends a member's process at each look, so that fewer
    processes that take turns cost less.
    """
    if args.cpus_per_trial is not None:
        return float(args.cpus_per_trial)
    if pbt is None or pbt.synch or args.address:
        return 1.0
    cores = args.cpus or len(os.sched_getaffinity(0))
    return max(int(1e3 * min(1.0, cores / pbt.population)) / 1e3, 0.01)


def _run_tuner(args: Namespace, command: str) -> int:
    # Find what does not fit before what takes seconds to import.
    if args.address and args.cpus is not None:
        raise ConfigError("--cpus is of a Ray of its own: leave it out with --address")
    config = _resumed(args, command) if args.resume else _tune_config(args, command)
    check_space(config)
    from distrlcc.tune.outcome import REPORTS, write_outcome
    from distrlcc.tune.tuner import open_folder, prepare

    prepare(config)
    from distrlcc.tune.ray_tune import run

    if config.storage and not args.resume:
        storage_filesystem(config.storage)
    # Run, and write what was found.
    with open_folder(args.out, config, resume=args.resume) as folder:
        try:
            signal, failures = run(
                config,
                folder,
                address=args.address,
                cpus=args.cpus,
                resume=args.resume,
                show=note,
            )
        except DistrlccError:
            if not args.resume and not (folder.path / REPORTS).exists():
                folder.discard()
            raise
        text = write_outcome(folder.path, config, failures, draw=not signal)
    # Say how it ended.
    if text is not None:
        print(text, end="")
    if signal:
        goes_on = f"distrlcc {config.command} --resume --out {folder.path}"
        note(f"distrlcc: stopped; saved. Go on with: {goes_on}")
        return 128 + signal
    if text is None:
        reasons = sorted(set(failures.values()))
        raise ConfigError(f"every member failed: {'; '.join(reasons) or 'for no known reason'}")
    for name in ("best.toml", "policy.safetensors", "population.png", "table.txt", "summary.json"):
        print(f"{name.partition('.')[0]}: {folder.path / name}")
    return 1 if failures else 0


def _resumed(args: Namespace, command: str) -> TuneConfig:
    """Return the configuration of the tuner in ``--out``; nothing else may be given."""
    from distrlcc.tune.tuner import read_config

    if args.out is None:
        raise ConfigError("--resume needs --out DIR, the tuner to go on with")
    if args.recipe is not None or args.flags - {"--resume", "--out", "--address", "--cpus"}:
        raise ConfigError(
            f"--resume takes all else from {args.out / 'config.toml'}: give only --out (and "
            "--address or --cpus)"
        )
    config = read_config(args.out)
    if config.command != f"tune {command}":
        raise ConfigError(f"{args.out} is of 'distrlcc {config.command}': resume it with that")
    return config
