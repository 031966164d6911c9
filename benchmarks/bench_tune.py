"""Measure PBT against as many independent members, with the same first values and total steps.

python -m benchmarks tune --seeds 0,1,2 --updates 120 --out runs/bench-tune --json -

Flags:
    --recipe N =quickstart
    --set/assignments* KEY=VALUE  change a key of the recipe
    --updates N {1..}  updates of one member (default: the recipe's total_steps)
    --cpus-per-trial C {0.01..10000}  cores of one member, may be a fraction
    --cpus C {1..}  cores of this machine that are used (default: all)
    --address HOST:PORT  a Ray cluster's head (default: a Ray on this machine)
    --mutate* KEY=DIST  what is tuned (default: ppo.lr=loguniform:1e-5:1e-2
        ppo.entropy_coeff=loguniform:1e-4:1e-1)
    --population N {2..} =8
    --interval N {1..} =20  updates between two looks
    --synch  look at all members together
    --seeds N,… {0..281474976710656} =0,1,2
    --out! DIR {path}  folder of all tuners' folders
    $JSON
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

from distrlcc.cli.main import main
from distrlcc.cli.output import emit_json
from distrlcc.tune.outcome import REPORTS, standings
from distrlcc.tune.report import pieces, read_reports
from distrlcc.tune.tune_config import steps_per_update
from distrlcc.tune.tuner import read_config

MUTATE = ("ppo.lr=loguniform:1e-5:1e-2", "ppo.entropy_coeff=loguniform:1e-4:1e-1")


def run(args: Namespace) -> int:
    """Measure and print."""
    # What both methods have in common.
    space, members = args.mutate or MUTATE, str(args.population)
    common = [args.recipe, "--report-every", str(args.interval)]
    for name in ("updates", "cpus", "address"):
        if getattr(args, name) is not None:
            common += [f"--{name}", str(getattr(args, name))]
    if args.assignments:
        common += ["--set", *args.assignments]
    pbt = ["pbt", *common, "--mutate", *space, "--population", members, *["--synch"] * args.synch]
    pbt += ["--interval", str(args.interval)]
    random = ["search", *common, "--search", *space, "--trials", members]
    random += ["--sampler", "random", "--no-asha"]
    # Run both with every seed; their first values are the same.
    stream = sys.stderr if args.json == "-" else sys.stdout
    cores = args.cpus_per_trial
    results: list[dict[str, float | str]] = []
    for seed in args.seeds:
        for method, words in (("pbt", pbt), ("random", random)):
            out, begin = args.out / f"{method}-seed{seed}", time.monotonic()
            share = [] if cores is None else ["--cpus-per-trial", str(cores)]
            with redirect_stdout(sys.stderr):
                code = main(["tune", *words, *share, "--seed", str(seed), "--out", str(out)])
            if code:
                return code
            cores = read_config(out).cpus_per_trial
            found = _result(out) | {"seed": seed, "method": method}
            results.append(found | {"seconds": time.monotonic() - begin})
            print(
                f"seed {seed} {method:>6}: final best {found['final']:.4f}, best ever "
                f"{found['best']:.4f}, median {found['median']:.4f}, {found['steps']:.3g} steps",
                file=stream,
                flush=True,
            )
    # Compare them seed by seed.
    finals = [[r["final"] for r in results if r["method"] == m] for m in ("pbt", "random")]
    both = np.array(finals, np.float64)
    gains = both[0] - both[1]
    shown = [f"{own.mean():.4f} ({own.min():.4f} to {own.max():.4f})" for own in both]
    print(
        f"final best over {len(gains)} seeds: PBT {shown[0]}, independent {shown[1]}; PBT ahead by "
        f"{gains.mean():+.4f} on average, in {(gains > 0).sum()} of {len(gains)} seeds",
        file=stream,
    )
    emit_json(args.json, {"tune": results})
    return 0


def _result(folder: Path) -> dict[str, float | str]:
    """Return the greatest score of all reports, and of the members' last ones, and their median.

    Steps are all members'; without ``--synch`` a member that copies a slower one trains some
    updates again.
    """
    config, reports = read_config(folder), read_reports(folder / REPORTS)
    found = standings(reports, config.mode)
    last = [report.score for _, report in found]
    spans = [(part[0].schedule[-1].update, part[-1].update) for part in pieces(reports)]
    updates = sum(end - begin for begin, end in spans)
    return {
        "best": found[0][0].score,
        "final": max(last),
        "median": float(np.median(last)),
        "steps": steps_per_update(config.run) * updates,
    }
