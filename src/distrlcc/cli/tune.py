"""Tune recipes: population-based training, and search with Optuna's samplers."""

from __future__ import annotations

import os
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrlcc.cli.parser import Parser, number, whole
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.cluster.session import RayOptions
    from distrlcc.runs.run_config import RunConfig
    from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig

METRICS = ("reward", "utilisation", "queueing_delay", "loss")
TIME_ATTRS = ("update", "steps", "training_iteration", "time_total_s")
SAMPLERS = ("tpe", "random", "cmaes", "gp", "qmc", "nsga2", "nsga3")
DISTRIBUTIONS = "uniform:a:b, loguniform:a:b, int:a:b or choice:x,y,…"


def add_pbt(parser: Parser) -> None:
    """Add the arguments of ``tune pbt``."""
    _add_tuner(parser, "--mutate")
    add = parser.add
    add("--population N", "members", int, 8)
    add("--interval T", "between two looks at a member, in --time-attr", float, 20.0)
    add("--time-attr", "what progress is measured by", default="update", choices=TIME_ATTRS)
    text = "updates between two reports (default: the interval where that is in updates, or 20)"
    add("--report-every N", text, int)
    add("--burn-in T", "before the first look, in --time-attr (default: 0)", float, 0.0)
    add("--quantile Q", "share of the worst, which copy as many of the best; 0 to 0.5", float, 0.25)
    add("--resample P", "probability of drawing a value anew instead of perturbing it", float, 0.25)
    add("--factors F,F", "one of them is multiplied with a number to perturb it", default="1.2,0.8")
    text = "a function of your own: takes the perturbed values by key, returns them"
    add("--explore MODULE:FUNCTION", text, default="")
    add("--synch", "look at all members at the same time", bool)
    no = parser.add_argument
    text = "write no pbt_global.txt of Ray's"
    no("--no-log-config", action="store_false", dest="log_config", help=text)
    text = "do not fail where a report lacks metric or time"
    no("--no-require-attrs", action="store_false", dest="require_attrs", help=text)


def run_pbt(args: Namespace) -> int:
    """Train a population whose worst members copy the best and change their values (PBT, Ray Tune).

    distrlcc tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune pbt quickstart --updates 200 --synch --mutate ppo.lr=loguniform:1e-5:1e-2
    distrlcc tune pbt quickstart --mutate ppo.gamma=uniform:0.9:0.99 ppo.num_epochs=int:1:6
    distrlcc tune pbt --resume --out runs/tune-quickstart-20260131-120000
    """
    return _run_tuner(args, "pbt", lambda: _pbt_config(args))


def _pbt_config(args: Namespace) -> TuneConfig:
    from distrlcc.tune.tune_config import PBTConfig

    try:
        first, second = (float(word) for word in args.factors.split(","))
    except ValueError:
        raise ConfigError(
            f"--factors {args.factors!r}: expected two numbers, as in 1.2,0.8"
        ) from None
    pbt = PBTConfig(**_given(args, PBTConfig) | {"factors": (first, second)})
    if args.report_every is None and args.time_attr != "update":
        args.report_every = 20
    elif args.report_every is None:
        if args.interval < 1 or not args.interval.is_integer():
            raise ConfigError(
                f"--interval {args.interval:g}: expected a whole number of updates, 1 or more"
            )
        args.report_every = int(args.interval)
    return _tune_config(args, pbt)


def add_search(parser: Parser) -> None:
    """Add the arguments of ``tune search``."""
    _add_tuner(parser, "--search")
    add = parser.add
    add("--trials N", "", int, 16)
    add("--sampler", "Optuna's sampler", default="tpe", choices=SAMPLERS)
    add("--interval N", "updates between two reports", int, 20, dest="report_every")
    text = "run every trial to its end"
    parser.add_argument("--no-asha", action="store_false", dest="asha", help=text)
    add("--grace N", "updates that every trial has (default: two intervals)", int)
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
    return _run_tuner(args, "search", lambda: _search_config(args))


def _search_config(args: Namespace) -> TuneConfig:
    from distrlcc.tune.tune_config import SearchConfig

    if args.grace is None:
        args.grace = 2 * args.report_every
    return _tune_config(args, SearchConfig(**_given(args, SearchConfig)))


def _add_tuner(parser: Parser, flag: str) -> None:
    """Add the arguments of every tuner; the flag takes ``KEY=DISTRIBUTION``."""
    add = parser.add
    add("recipe RECIPE", "see 'distrlcc list recipes'", nargs="?")
    add_member_arguments(parser)
    add(f"{flag} KEY=DIST", f"what is tuned: {DISTRIBUTIONS}", list, dest="space")
    add("--seed", "short for --set seed=N", int)
    add("--out DIR", "folder (default: runs/tune-…)", Path)
    add("--resume", "go on with the tuner in --out", bool)
    text = "what is compared, a mean over held-out links"
    add("--metric", text, default="reward", choices=METRICS)
    add("--mode", "default: max, for queueing_delay and loss min", choices=("max", "min"))
    text = "where members' checkpoints go: an NFS folder, s3://bucket/path … (default: in --out)"
    add("--storage DIR|URL", text, default="")
    add("--keep N", "checkpoints kept of each member", int, 4)
    add("--failures N", "times that a member that failed is started again", int, 2)


def add_member_arguments(parser: Parser) -> None:
    """Add the arguments that say what a member trains, and where."""
    add = parser.add
    add("--set KEY=VALUE", "change a key of the recipe; may be repeated", list, dest="assignments")
    add("--updates N", "updates of one member (default: the recipe's total_steps)", whole(1))
    add("--cpus-per-trial C", "cores of one member, may be a fraction", number(0.01, 1e4))
    add("--cpus C", "cores of this machine that are used (default: all)", whole(1))
    text = "a Ray cluster's head, or auto (default: a Ray of its own on this machine)"
    add("--address HOST:PORT", text, default="")


def member_config(args: Namespace) -> RunConfig:
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


def _tune_config(args: Namespace, method: PBTConfig | SearchConfig) -> TuneConfig:
    """Return the tuner that the arguments describe."""
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


def _given(args: Namespace, cls: type) -> dict[str, Any]:
    """Return the arguments that have the names of a dataclass's fields."""
    return {field.name: getattr(args, field.name) for field in fields(cls)}


def ray_options(args: Namespace) -> RayOptions:
    """Return which Ray is meant."""
    from distrlcc.cluster.session import RayOptions

    if args.address and args.cpus is not None:
        raise ConfigError("--cpus is of a Ray of its own: leave it out with --address")
    return RayOptions(args.address, cpus=args.cpus)


def core_share(args: Namespace, members: int, *, synch: bool) -> float:
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


def _run_tuner(args: Namespace, command: str, build: Callable[[], TuneConfig]) -> int:
    """Begin or go on with a tuner, ``pbt`` or ``search``; return the exit code.

    Args:
        args: The arguments.
        command: The tuner.
        build: Returns the configuration of a new one.
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


def _resumed(args: Namespace, command: str) -> TuneConfig:
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
