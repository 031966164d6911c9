"""Train a policy by a recipe.

distrlcc train quickstart --out runs/first
distrlcc train quickstart --set ppo.lr=3e-4 --set seed=7
distrlcc train --resume --out runs/first
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.errors import ConfigError

if TYPE_CHECKING:
    from distrlcc.runtime.run_directory import RunDirectory
    from distrlcc.runtime.train import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="see 'distrlcc list recipes'")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the configuration, such as ppo.lr=3e-4; may be repeated",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", type=Path, help="run directory (default: runs/…)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument("--no-tensorboard", action="store_true", help="write no event files")
    parser.add_argument("--print-config", action="store_true", help="print it as TOML and stop")


def run(args: argparse.Namespace) -> int:
    """Train; 0 when done, 130 or 143 after a signal."""
    from distrlcc.config import override, to_toml
    from distrlcc.recipes.registry import recipe
    from distrlcc.runtime.run_config import EXTENDABLE, RunConfig
    from distrlcc.runtime.run_directory import RunDirectory
    from distrlcc.runtime.train import Trainer

    assignments = list(args.assignments)
    if args.seed is not None:
        assignments.append(f"seed={args.seed}")
    if args.resume:
        if args.out is None:
            raise ConfigError("--resume needs --out DIR, the run to go on with")
        began = RunDirectory.read_config(args.out, RunConfig)
        config = override(began if args.recipe is None else recipe(args.recipe), assignments)
    else:
        if args.recipe is None:
            raise ConfigError("no recipe; expected a name of 'distrlcc list recipes'")
        config = override(recipe(args.recipe), assignments)
    if args.print_config:
        print(to_toml(config), end="")
        return 0
    # Built first: what does not fit is found before anything is written.
    trainer = Trainer(config)
    tensorboard = not args.no_tensorboard
    if args.resume:
        directory = RunDirectory.resume(
            args.out, config, tensorboard=tensorboard, extendable=EXTENDABLE
        )
    else:
        directory = RunDirectory.create(
            args.out, config, recipe=config.recipe, seeds={"seed": config.seed},
            tensorboard=tensorboard, extendable=EXTENDABLE,
        )  # fmt: skip
    return _train(trainer, directory, resume=args.resume)


def _train(trainer: Trainer, directory: RunDirectory, *, resume: bool) -> int:
    import sys

    from distrlcc.runtime.progress import Progress
    from distrlcc.runtime.train import train

    config = trainer.config
    with directory, Progress(config.total_steps, max_seconds=config.max_seconds) as progress:
        stopped = train(trainer, directory, progress, resume=resume)
    counters = trainer.counters
    print(
        f"held-out links: utilisation {counters.best_utilisation:.3f}, queueing delay "
        f"{counters.best_queueing_delay:.3f} RTT (best at update {counters.best_update} of "
        f"{counters.update})"
    )
    if stopped:
        print(
            f"distrlcc: stopped; saved. Go on with: distrlcc train --resume --out {directory.path}",
            file=sys.stderr,
        )
        return 128 + stopped
    print(f"policy: {directory.policy_path}")
    return 0
