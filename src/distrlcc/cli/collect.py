"""Collect an expert's trajectories as a data set, for imitation or offline learning.

distrlcc collect oracle --suite random --steps 1000000 --out data/oracle
distrlcc collect cubic,bbr,vegas,copa --suite cellular --out data/best-of-four
distrlcc collect cubic --episodes 64 --out data/cubic --set env.action=fast-rate
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from distrlcc.cli.output import counted, note
from distrlcc.cli.parser import Parser, assignments, number, whole
from distrlcc.cli.run_arguments import add_assignments
from distrlcc.config import override
from distrlcc.recipes.registry import recipe


def add_arguments(parser: Parser) -> None:
    add = parser.add
    text = "the expert: oracle, cubic, bbr, …; of several (cubic,bbr,copa) each link has the best"
    add("scheme SCHEME", text)
    parser.intermixed = True
    for flag in ("--scheme", "--expert"):
        parser.gone(flag, ": name the expert first, as in 'collect oracle'")
    add("--out DIR", "a new folder", Path, required=True)
    add("--suite SUITE", "a suite, TOML file or folder of traces (default: the recipe's suites)")
    amount = parser.add_mutually_exclusive_group()
    text = "whole episodes up to N steps (default: 1000000)"
    add("--steps N", text, whole(1), to=amount, key="steps")
    add("--episodes N", "N episodes", whole(1), to=amount, key="episodes")
    add("--num-envs N", "episodes side by side (default: 256)", whole(1), key="num_envs")
    add("--seed N", "which links", whole(0), key="seed")
    text = "share of random actions, from which the oracle comes back (default: 0.1 for it)"
    add("--disturb SHARE", text, number(0, 0.5), key="disturb")
    splits = ("train", "validation", "test")
    add("--split", "default: train", key="split", choices=splits)
    add("--recipe RECIPE", "whose observations, actions and reward", default="quickstart")
    add_assignments(parser, "environment, such as env.step_ms=20")
    add("--shard-steps N", "steps in a file (default: 262144)", whole(1), key="shard_steps")


def run(args: Namespace) -> int:
    """Collect, and say what was collected."""
    from distrlcc.data.writer import check_vacant
    from distrlcc.runs.collect_data import CollectConfig, ExpertRounds, collect_data
    from distrlcc.runs.progress import Progress

    env = recipe(args.recipe).env
    if args.suite is not None:
        env = replace(env, suites=(args.suite,), suite_weights=())
    settings = ["disturb=0.1"] if args.scheme == "oracle" else []
    settings += ["steps=0"] if args.episodes else []
    config = override(CollectConfig(args.scheme, env=env), [*settings, *assignments(args)])
    check_vacant(args.out)
    rounds = ExpertRounds(config)
    with Progress(config.steps or config.episodes * (config.episode_steps - 1)) as progress:
        manifest = collect_data(rounds, config, args.out, progress)
    if isinstance(manifest, int):
        note("distrlcc: stopped; nothing was kept")
        return 128 + manifest
    size = sum(shard.steps_bytes + shard.episodes_bytes for shard in manifest.shards)
    print(
        f"{args.out}: {manifest.steps} steps in {manifest.episodes} episodes of {config.scheme}, "
        f"{counted(manifest.shards, 'shard')}, {size / 1e6:.1f} MB"
    )
    return 0
