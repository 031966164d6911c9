"""Measure PBT against as many independent members, with the same first values and total steps.

python -m benchmarks tune --seeds 0,1,2 --updates 120 --json -
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from distrlcc.cli.parser import number
from distrlcc.cli.tune_arguments import (
    add_member_arguments,
    core_share,
    member_config,
    ray_options,
)
from distrlcc.errors import ConfigError

MUTATE = ("ppo.lr=loguniform:1e-5:1e-2", "ppo.entropy_coeff=loguniform:1e-4:1e-1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--recipe", default="quickstart", help="default: quickstart")
    add_member_arguments(parser)
    parser.add_argument(
        "--mutate", action="extend", nargs="+", default=[], metavar="KEY=DIST",
        help=f"what is tuned (default: {' '.join(MUTATE)})",
    )  # fmt: skip
    parser.add_argument("--population", type=number(2, whole=True), default=8, metavar="N")
    parser.add_argument(
        "--interval", type=number(1, whole=True), default=20, metavar="N",
        help="updates between two looks (default: 20)",
    )  # fmt: skip
    parser.add_argument("--synch", action="store_true", help="look at all members together")
    parser.add_argument("--seeds", default="0,1,2", metavar="N,…", help="default: 0,1,2")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="folder of all tuners' folders"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    parser.set_defaults(seed=None)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    import numpy as np

    from benchmarks.tuning import compare
    from distrlcc.cli.output import check_json_target, emit_json
    from distrlcc.tune.tune_config import PBTConfig, TuneConfig
    from distrlcc.tune.tuner import prepare

    check_json_target(args.json)
    seeds = _seeds(args.seeds)
    config = TuneConfig(
        run=member_config(args),
        space=tuple(args.mutate or MUTATE),
        report_every=args.interval,
        cpus_per_trial=core_share(args, args.population, synch=args.synch),
        pbt=PBTConfig(population=args.population, interval=args.interval, synch=args.synch),
    )
    options = ray_options(args)
    prepare(config, options)

    def show(line: str) -> None:
        print(line, file=sys.stderr if args.json == "-" else sys.stdout, flush=True)

    found = compare(config, seeds, args.out, options, show)
    if found.signal:
        print("distrlcc: stopped; run it again with another --out", file=sys.stderr)
        return 128 + found.signal
    pbt, random, gains = found.finals("pbt"), found.finals("random"), found.gains()
    show(
        f"final best over {len(seeds)} seeds: PBT {np.mean(pbt):.4f} ({min(pbt):.4f} to "
        f"{max(pbt):.4f}), independent {np.mean(random):.4f} ({min(random):.4f} to "
        f"{max(random):.4f}); PBT ahead by {np.mean(gains):+.4f} on average, in "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds"
    )
    emit_json(args.json, {"tune": [asdict(one) for one in found.measured]})
    return 0


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        seeds = [-1]
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: expected different whole numbers, as in 0,1,2")
    return seeds
