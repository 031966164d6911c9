"""Train a population whose worst members copy the best and change their values (PBT, Ray Tune).

distrlcc tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2
distrlcc tune pbt quickstart --updates 200 --synch --mutate ppo.lr=loguniform:1e-5:1e-2
distrlcc tune pbt quickstart --mutate ppo.gamma=uniform:0.9:0.99 ppo.num_epochs=int:1:6
distrlcc tune pbt --resume --out runs/tune-quickstart-20260131-120000
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.cli.tune_arguments import (
    add_tune_arguments,
    core_share,
    member_config,
    mode_of,
    run_tuner,
    storage_name,
)
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.tune.tune_config import TuneConfig

TIME_ATTRS = ("update", "steps", "training_iteration", "time_total_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_tune_arguments(parser)
    parser.add_argument(
        "--mutate", action="extend", nargs="+", default=[], metavar="KEY=DIST",
        help="what is tuned: uniform:a:b, loguniform:a:b, int:a:b or choice:x,y,…",
    )  # fmt: skip
    parser.add_argument(
        "--population", type=number(whole=True, low=0), default=8, metavar="N",
        help="members (default: 8)",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=number(0), default=20.0, metavar="T",
        help="between two looks at a member, in --time-attr (default: 20)",
    )  # fmt: skip
    parser.add_argument(
        "--time-attr", choices=TIME_ATTRS, default="update",
        help="what progress is measured by (default: update)",
    )  # fmt: skip
    parser.add_argument(
        "--report-every", type=number(1, whole=True), metavar="N",
        help="updates between two reports (default: the interval where that is in updates, or 20)",
    )  # fmt: skip
    parser.add_argument(
        "--burn-in", type=number(0), default=0.0, metavar="T",
        help="before the first look, in --time-attr (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--quantile", type=number(0), default=0.25, metavar="Q",
        help="share of the worst, who copy as many of the best; 0 to 0.5 (default: 0.25)",
    )  # fmt: skip
    parser.add_argument(
        "--resample", type=number(0), default=0.25, metavar="P",
        help="probability of drawing a value anew instead of perturbing it (default: 0.25)",
    )  # fmt: skip
    parser.add_argument(
        "--factors", default="1.2,0.8", metavar="F,F",
        help="one of them is multiplied with a number to perturb it (default: 1.2,0.8)",
    )  # fmt: skip
    parser.add_argument(
        "--explore", default="", metavar="MODULE:FUNCTION",
        help="a function of your own: takes the perturbed values by key, returns them",
    )  # fmt: skip
    parser.add_argument("--synch", action="store_true", help="look at all members at the same time")
    parser.add_argument(
        "--no-log-config", action="store_true", help="write no pbt_global.txt of Ray's"
    )
    parser.add_argument(
        "--no-require-attrs", action="store_true",
        help="do not fail where a report lacks metric or time",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Tune; 0 when done, 128 + the signal's number after a signal."""
    return run_tuner(args, "pbt", lambda: _config(args), args.mutate)


def _config(args: argparse.Namespace) -> TuneConfig:
    from distrlcc.tune.tune_config import PBTConfig, TuneConfig

    pbt = PBTConfig(
        population=args.population,
        interval=args.interval,
        time_attr=args.time_attr,
        burn_in=args.burn_in,
        quantile=args.quantile,
        resample=args.resample,
        factors=_factors(args.factors),
        explore=args.explore,
        log_config=not args.no_log_config,
        require_attrs=not args.no_require_attrs,
        synch=args.synch,
    )
    return TuneConfig(
        run=member_config(args),
        space=tuple(args.mutate),
        storage=args.storage,
        name=storage_name(args),
        report_every=_report_every(args),
        metric=args.metric,
        mode=mode_of(args),
        cpus_per_trial=core_share(args, args.population, synch=args.synch),
        keep=args.keep,
        failures=args.failures,
        pbt=pbt,
    )


def _report_every(args: argparse.Namespace) -> int:
    if args.report_every is not None:
        return int(args.report_every)
    if args.time_attr != "update":
        return 20
    if args.interval < 1 or not float(args.interval).is_integer():
        raise ConfigError(
            f"--interval {args.interval:g}: expected a whole number of updates, 1 or more"
        )
    return int(args.interval)


def _factors(text: str) -> tuple[float, float]:
    try:
        first, second = (float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--factors {text!r}: expected two numbers, as in 1.2,0.8") from None
    return first, second
