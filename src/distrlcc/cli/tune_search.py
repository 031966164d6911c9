"""Search for a recipe's values with Optuna's samplers, and stop bad trials early (ASHA).

distrlcc tune search quickstart --trials 16 --updates 200 --search ppo.lr=loguniform:1e-5:1e-2
distrlcc tune search quickstart --sampler gp --search network.hidden=choice:[32,32],[64,64]
distrlcc tune search --resume --out runs/tune-quickstart-20260131-120000
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number
from distrlcc.cli.tune_arguments import (
    add_tune_arguments,
    member_config,
    mode_of,
    run_tuner,
    storage_name,
)

if TYPE_CHECKING:
    from distrlcc.tune.tune_config import TuneConfig

SAMPLERS = ("tpe", "random", "cmaes", "gp", "qmc", "nsga2", "nsga3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_tune_arguments(parser)
    parser.add_argument(
        "--search", action="extend", nargs="+", default=[], metavar="KEY=DIST",
        help="what is searched: uniform:a:b, loguniform:a:b, int:a:b or choice:x,y,…",
    )  # fmt: skip
    parser.add_argument(
        "--trials", type=number(1, whole=True), default=16, metavar="N", help="default: 16"
    )
    parser.add_argument(
        "--sampler", choices=SAMPLERS, default="tpe", help="Optuna's sampler (default: tpe)"
    )
    parser.add_argument(
        "--interval", type=number(1, whole=True), default=20, metavar="N",
        help="updates between two reports (default: 20)",
    )  # fmt: skip
    parser.add_argument("--no-asha", action="store_true", help="run every trial to its end")
    parser.add_argument(
        "--grace", type=number(1, whole=True), metavar="N",
        help="updates that every trial has (default: two intervals)",
    )  # fmt: skip
    parser.add_argument(
        "--reduction", type=number(1), default=3.0, metavar="R",
        help="at each of ASHA's rungs one of R trials goes on (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--brackets", type=number(1, whole=True), default=1, metavar="N", help="default: 1"
    )
    parser.add_argument(
        "--concurrent", type=number(0, whole=True), default=0, metavar="N",
        help="trials at the same time (default: as many as there are cores for)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Search; 0 when done, 128 + the signal's number after a signal."""
    return run_tuner(args, "search", lambda: _config(args), args.search)


def _config(args: argparse.Namespace) -> TuneConfig:
    from distrlcc.tune.tune_config import SearchConfig, TuneConfig

    search = SearchConfig(
        trials=args.trials,
        sampler=args.sampler,
        asha=not args.no_asha,
        grace=args.grace if args.grace is not None else 2 * args.interval,
        reduction=args.reduction,
        brackets=args.brackets,
        concurrent=args.concurrent,
    )
    return TuneConfig(
        run=member_config(args),
        space=tuple(args.search),
        storage=args.storage,
        name=storage_name(args),
        report_every=args.interval,
        metric=args.metric,
        mode=mode_of(args),
        cpus_per_trial=args.cpus_per_trial or 1.0,
        keep=args.keep,
        failures=args.failures,
        search=search,
    )
