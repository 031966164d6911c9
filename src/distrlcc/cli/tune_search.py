"""Search for a recipe's values with Optuna's samplers, and stop bad trials early (ASHA).

distrlcc tune search quickstart --trials 16 --updates 200 --search ppo.lr=loguniform:1e-5:1e-2
distrlcc tune search quickstart --sampler gp --search network.hidden=choice:[32,32],[64,64]
distrlcc tune search --resume --out runs/tune-quickstart-20260131-120000
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distrlcc.cli.tune_arguments import add_tune_arguments, given, run_tuner, tune_config

if TYPE_CHECKING:
    from distrlcc.tune.tune_config import TuneConfig

SAMPLERS = ("tpe", "random", "cmaes", "gp", "qmc", "nsga2", "nsga3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_tune_arguments(parser, "--search")
    add = parser.add_argument
    add("--trials", type=int, default=16, metavar="N", help="default: 16")
    what = "Optuna's sampler (default: tpe)"
    add("--sampler", choices=SAMPLERS, default="tpe", help=what)
    what = "updates between two reports (default: 20)"
    add("--interval", type=int, default=20, metavar="N", dest="report_every", help=what)
    add("--no-asha", action="store_false", dest="asha", help="run every trial to its end")
    what = "updates that every trial has (default: two intervals)"
    add("--grace", type=int, metavar="N", help=what)
    what = "at each of ASHA's rungs one of R trials goes on (default: 3)"
    add("--reduction", type=float, default=3.0, metavar="R", help=what)
    add("--brackets", type=int, default=1, metavar="N", help="default: 1")
    what = "trials at the same time (default: as many as there are cores for)"
    add("--concurrent", type=int, default=0, metavar="N", help=what)


def run(args: argparse.Namespace) -> int:
    """Search; 0 when done, 128 + the signal's number after a signal."""
    return run_tuner(args, "search", lambda: _config(args))


def _config(args: argparse.Namespace) -> TuneConfig:
    from distrlcc.tune.tune_config import SearchConfig

    if args.grace is None:
        args.grace = 2 * args.report_every
    return tune_config(args, SearchConfig(**given(args, SearchConfig)))
