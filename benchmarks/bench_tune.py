"""Measure PBT against as many independent members, with the same first values and total steps.

python -m benchmarks tune --seeds 0,1,2 --updates 120 --out runs/bench-tune --json -
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from distrlcc.cli.output import add_json, emit_json
from distrlcc.cli.parser import Parser, number
from distrlcc.cli.tune import add_member_arguments, core_share, member_config, ray_options
from distrlcc.errors import ConfigError
from distrlcc.tune.outcome import REPORTS, standings, write_outcome
from distrlcc.tune.report import pieces, read_reports
from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig, steps_per_update
from distrlcc.tune.tuner import open_folder, prepare
from distrlcc.tune.tuner import run as run_tuner

MUTATE = ("ppo.lr=loguniform:1e-5:1e-2", "ppo.entropy_coeff=loguniform:1e-4:1e-1")


@dataclass(frozen=True)
class TunerResult:
    """What one tuner found."""

    seed: int
    method: str
    """``pbt`` or ``random``."""
    best: float
    """Greatest score of all reports."""
    final: float
    """Greatest score of the members' last reports."""
    median: float
    """Median of the members' last scores."""
    steps: int
    """Environment steps that all members trained; without ``synch`` a member that copies a slower
    one trains some updates again."""
    seconds: float
    """Time, s, Ray's start included."""


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("--recipe", default="quickstart", help="default: quickstart")
    add_member_arguments(parser)
    what = f"what is tuned (default: {' '.join(MUTATE)})"
    add("--mutate", action="extend", nargs="+", default=[], metavar="KEY=DIST", help=what)
    add("--population", type=number(2, whole=True), default=8, metavar="N")
    what = "updates between two looks (default: 20)"
    add("--interval", type=number(1, whole=True), default=20, metavar="N", help=what)
    add("--synch", action="store_true", help="look at all members together")
    add("--seeds", default="0,1,2", metavar="N,…", help="default: 0,1,2")
    what = "folder of all tuners' folders"
    add("--out", metavar="DIR", type=Path, required=True, help=what)
    add_json(parser, "the figures")
    parser.set_defaults(seed=None)


def run(args: Namespace) -> int:
    """Measure and print."""
    # See that everything fits.
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
    # Run both methods with every seed; their first values are the same.
    stream = sys.stderr if args.json == "-" else sys.stdout
    search = SearchConfig(trials=config.members, sampler="random", asha=False)
    results: list[TunerResult] = []
    for seed in seeds:
        seeded = replace(config, run=replace(config.run, seed=seed))
        for method, one in (("pbt", seeded), ("random", replace(seeded, pbt=None, search=search))):
            begin = time.monotonic()
            with open_folder(args.out / f"{method}-seed{seed}", one) as folder:
                ended = run_tuner(one, folder, options)
                write_outcome(folder.path, one, ended.failures)
            if ended.signal:
                print("distrlcc: stopped; run it again with another --out", file=sys.stderr)
                return 128 + ended.signal
            found = _result(seed, method, one, folder.path, time.monotonic() - begin)
            results.append(found)
            print(
                f"seed {seed} {method:>6}: final best {found.final:.4f}, best ever "
                f"{found.best:.4f}, median {found.median:.4f}, {found.steps / 1e6:.2f} M steps, "
                f"{found.seconds:.0f} s",
                file=stream,
                flush=True,
            )
    # Compare them seed by seed.
    pbt, random = ([r.final for r in results if r.method == m] for m in ("pbt", "random"))
    gains = np.subtract(pbt, random)
    print(
        f"final best over {len(seeds)} seeds: PBT {np.mean(pbt):.4f} ({min(pbt):.4f} to "
        f"{max(pbt):.4f}), independent {np.mean(random):.4f} ({min(random):.4f} to "
        f"{max(random):.4f}); PBT ahead by {gains.mean():+.4f} on average, in {(gains > 0).sum()} "
        f"of {len(gains)} seeds",
        file=stream,
    )
    emit_json(args.json, {"tune": [asdict(result) for result in results]})
    return 0


def _result(
    seed: int, method: str, config: TuneConfig, folder: Path, seconds: float
) -> TunerResult:
    reports = read_reports(folder / REPORTS)
    found = standings(reports, config.mode)
    last = [report.score for _, report in found]
    updates = sum(piece[-1].update - piece[0].since for piece in pieces(reports))
    return TunerResult(
        seed=seed,
        method=method,
        best=found[0][0].score,
        final=max(last),
        median=float(np.median(last)),
        steps=steps_per_update(config.run) * updates,
        seconds=seconds,
    )


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        seeds = [-1]
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: expected different whole numbers, as in 0,1,2")
    return seeds
