"""Collect an expert's trajectories as a data set, for imitation or offline learning.

distrlcc collect --scheme oracle --suite random --steps 1000000 --out data/oracle
distrlcc collect --scheme cubic,bbr,vegas,copa --suite cellular --out data/best-of-four
distrlcc collect --scheme cubic --episodes 64 --out data/cubic --set env.action=fast-rate
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distrlcc.cli.parser import number

DISTURB = 0.1
"""Share of random actions in the oracle's trajectories, unless another is given."""

if TYPE_CHECKING:
    from distrlcc.runs.collect_data import CollectConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    whole = number(1, whole=True)
    parser.add_argument(
        "--scheme",
        required=True,
        metavar="NAME",
        help="the expert: oracle, cubic, bbr, …; of "
        "several (cubic,bbr,copa) each link has the best",
    )
    parser.add_argument("--out", required=True, metavar="DIR", type=Path, help="a new folder")
    parser.add_argument(
        "--suite", metavar="SUITE",
        help="a suite, TOML file or folder of traces (default: the recipe's suites)",
    )  # fmt: skip
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--steps", type=whole, metavar="N", help="whole episodes up to N steps (default: 1000000)"
    )
    amount.add_argument("--episodes", type=whole, metavar="N", help="N episodes")
    parser.add_argument(
        "--num-envs", type=whole, metavar="N", help="episodes side by side (default: 256)"
    )
    parser.add_argument("--seed", type=number(0, whole=True), metavar="N", help="which links")
    parser.add_argument(
        "--disturb", type=number(0, 0.5), metavar="SHARE",
        help="share of random actions, from which the oracle comes back (default: 0.1 for it)",
    )  # fmt: skip
    parser.add_argument("--split", choices=("train", "validation", "test"), help="default: train")
    parser.add_argument(
        "--recipe", default="quickstart", metavar="RECIPE",
        help="whose observations, actions and reward (default: quickstart)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments",
        help="change a key of the environment, such as env.step_ms=20; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--shard-steps", type=whole, metavar="N", help="steps in a file (default: 262144)"
    )


def run(args: argparse.Namespace) -> int:
    """Collect, and say what was collected."""
    import sys

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
    shards = len(manifest.shards)
    size = sum(shard.steps_bytes + shard.episodes_bytes for shard in manifest.shards)
    print(
        f"{args.out}: {manifest.steps} steps in {manifest.episodes} episodes of {config.scheme}, "
        f"{shards} shard{'s' if shards > 1 else ''}, {size / 1e6:.1f} MB"
    )
    return 0


def _config(args: argparse.Namespace) -> CollectConfig:
    from dataclasses import replace

    from distrlcc.config import override
    from distrlcc.recipes.registry import recipe
    from distrlcc.runs.collect_data import CollectConfig

    env = recipe(args.recipe).env
    if args.suite is not None:
        env = replace(env, suites=(args.suite,), suite_weights=())
    chosen = {
        key: getattr(args, key)
        for key in ("steps", "episodes", "num_envs", "seed", "split", "shard_steps", "disturb")
        if getattr(args, key) is not None
    }
    if args.scheme == "oracle":
        chosen.setdefault("disturb", DISTURB)
    if "episodes" in chosen:
        chosen["steps"] = 0
    return override(CollectConfig(args.scheme, **chosen, env=env), args.assignments)
