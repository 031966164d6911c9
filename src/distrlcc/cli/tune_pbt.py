"""Train a population whose worst members copy the best and change their values (PBT, Ray Tune).

distrlcc tune pbt quickstart --mutate ppo.lr=loguniform:1e-5:1e-2
distrlcc tune pbt quickstart --updates 200 --synch --mutate ppo.lr=loguniform:1e-5:1e-2
distrlcc tune pbt quickstart --mutate ppo.gamma=uniform:0.9:0.99 ppo.num_epochs=int:1:6
distrlcc tune pbt --resume --out runs/tune-quickstart-20260131-120000
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distrlcc.cli.tune_arguments import add_tune_arguments, given, run_tuner, tune_config
from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.tune.tune_config import TuneConfig

TIME_ATTRS = ("update", "steps", "training_iteration", "time_total_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_tune_arguments(parser, "--mutate")
    add = parser.add_argument
    add("--population", type=int, default=8, metavar="N", help="members (default: 8)")
    what = "between two looks at a member, in --time-attr (default: 20)"
    add("--interval", type=float, default=20.0, metavar="T", help=what)
    what = "what progress is measured by (default: update)"
    add("--time-attr", choices=TIME_ATTRS, default="update", help=what)
    what = "updates between two reports (default: the interval where that is in updates, or 20)"
    add("--report-every", type=int, metavar="N", help=what)
    what = "before the first look, in --time-attr (default: 0)"
    add("--burn-in", type=float, default=0.0, metavar="T", help=what)
    what = "share of the worst, which copy as many of the best; 0 to 0.5 (default: 0.25)"
    add("--quantile", type=float, default=0.25, metavar="Q", help=what)
    what = "probability of drawing a value anew instead of perturbing it (default: 0.25)"
    add("--resample", type=float, default=0.25, metavar="P", help=what)
    what = "one of them is multiplied with a number to perturb it (default: 1.2,0.8)"
    add("--factors", default="1.2,0.8", metavar="F,F", help=what)
    what = "a function of your own: takes the perturbed values by key, returns them"
    add("--explore", default="", metavar="MODULE:FUNCTION", help=what)
    add("--synch", action="store_true", help="look at all members at the same time")
    what = "write no pbt_global.txt of Ray's"
    add("--no-log-config", action="store_false", dest="log_config", help=what)
    what = "do not fail where a report lacks metric or time"
    add("--no-require-attrs", action="store_false", dest="require_attrs", help=what)


def run(args: argparse.Namespace) -> int:
    """Tune; 0 when done, 128 + the signal's number after a signal."""
    return run_tuner(args, "pbt", lambda: _config(args))


def _config(args: argparse.Namespace) -> TuneConfig:
    from distrlcc.tune.tune_config import PBTConfig

    try:
        first, second = (float(word) for word in args.factors.split(","))
    except ValueError:
        raise ConfigError(
            f"--factors {args.factors!r}: expected two numbers, as in 1.2,0.8"
        ) from None
    pbt = PBTConfig(**given(args, PBTConfig) | {"factors": (first, second)})
    if args.report_every is None and args.time_attr != "update":
        args.report_every = 20
    elif args.report_every is None:
        if args.interval < 1 or not args.interval.is_integer():
            raise ConfigError(
                f"--interval {args.interval:g}: expected a whole number of updates, 1 or more"
            )
        args.report_every = int(args.interval)
    return tune_config(args, pbt)
