"""Collect an expert's trajectories as a data set, for imitation or offline learning.

distrlcc collect --scheme oracle --suite random --steps 1000000 --out data/oracle
distrlcc collect --scheme cubic,bbr,vegas,copa --suite cellular --out data/best-of-four
distrlcc collect --scheme cubic --episodes 64 --out data/cubic --set env.action=fast-rate
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.output import counted
from distrlcc.cli.parser import Parser, number, whole
from distrlcc.cli.run_arguments import add_assignments

DISTURB = 0.1
"""Share of random actions in the oracle's trajectories, unless another is given."""

if TYPE_CHECKING:
    from distrlcc.runs.collect_data import CollectConfig


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    add = parser.add
    text = "the expert: oracle, cubic, bbr, …; of several (cubic,bbr,copa) each link has the best"
    add("--scheme NAME", text, required=True)
    add("--out DIR", "a new folder", Path, required=True)
    add("--suite SUITE", "a suite, TOML file or folder of traces (default: the recipe's suites)")
    amount = parser.add_mutually_exclusive_group()
    add("--steps N", "whole episodes up to N steps (default: 1000000)", whole(1), to=amount)
    add("--episodes N", "N episodes", whole(1), to=amount)
    add("--num-envs N", "episodes side by side (default: 256)", whole(1))
    add("--seed N", "which links", whole(0))
    text = "share of random actions, from which the oracle comes back (default: 0.1 for it)"
    add("--disturb SHARE", text, number(0, 0.5))
    add("--split", "default: train", choices=("train", "validation", "test"))
    add("--recipe RECIPE", "whose observations, actions and reward", default="quickstart")
    add_assignments(parser, "environment, such as env.step_ms=20")
    add("--shard-steps N", "steps in a file (default: 262144)", whole(1))


def run(args: Namespace) -> int:
    """Collect, and say what was collected."""
    from distrlcc.data.writer import check_vacant
    from distrlcc.runs.collect_data import ExpertRounds, collect_data
    from distrlcc.runs.progress import Progress

    config = _config(args)
    check_vacant(args.out)
    rounds = ExpertRounds(config)
    with Progress(config.steps or config.episodes * (config.episode_steps - 1)) as progress:
        manifest = collect_data(rounds, config, args.out, progress)
    if isinstance(manifest, int):
        print("distrlcc: stopped; nothing was kept", file=sys.stderr)
        return 128 + manifest
    size = sum(shard.steps_bytes + shard.episodes_bytes for shard in manifest.shards)
    print(
        f"{args.out}: {manifest.steps} steps in {manifest.episodes} episodes of {config.scheme}, "
        f"{counted(manifest.shards, 'shard')}, {size / 1e6:.1f} MB"
    )
    return 0


def _config(args: Namespace) -> CollectConfig:
    from dataclasses import replace

    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe
    from distrlcc.runs.collect_data import CollectConfig

    env = recipe(args.recipe).env
    if args.suite is not None:
        env = replace(env, suites=(args.suite,), suite_weights=())
    keys = ("steps", "episodes", "num_envs", "seed", "split", "shard_steps", "disturb")
    chosen = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    if args.scheme == "oracle":
        chosen.setdefault("disturb", DISTURB)
    if "episodes" in chosen:
        chosen["steps"] = 0
    return override(CollectConfig(args.scheme, **chosen, env=env), args.assignments)
