"""Measure the speed of the simulator, of environments and of training."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace

from distrlcc.cli.output import Countdown, add_json, emit_json, note
from distrlcc.cli.parser import Parser, number, whole
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig

_BASELINE = "ppo_lstm"
_WARM_UP = 2
"""Updates that are not counted."""
_LEAST = 3
"""Updates that are counted at least."""


def add_sim(parser: Parser) -> None:
    add_json(parser, "the figures")
    parser.add("--envs", "environments", whole(1), 256)
    parser.add("--steps", "steps of 10 ms", whole(1), 500)
    parser.add("--repeats", "best of so many", whole(1), 5)


def run_sim(args: Namespace) -> int:
    """Measure the simulator on one core, beside the reference in the same run."""
    from distrlcc.sim.bench import LINKS, bench

    links = Countdown(tuple(LINKS), lambda name: f"measuring {name}")
    result = bench(args.envs, args.steps, args.repeats, links)
    if args.json != "-":
        for name, row in result["links"].items():
            print(
                f"{name}: {row['ns_per_packet']:.1f} ns/packet, "
                f"{row['env_steps_per_second'] / 1e6:.2f} M env-steps/s, "
                f"reference {row['reference_ns_per_packet']:.0f} ns/packet "
                f"({row['times_reference']:.0f} times)"
            )
    emit_json(args.json, result)
    return 0


def add_train(parser: Parser) -> None:
    add_json(parser, "the figures")
    parser.add("--seconds", "time for all of them, s", number(0.1), 45.0)


def run_train(args: Namespace) -> int:
    """Measure training, learning included, in turns: PPO on `one`'s links, and two other recipes.

    One process, one thread. What differs on `one`'s links is the recurrent layer alone: its own
    minGRU, or an LSTM. Speeds are also given beside the LSTM's in the same turns.
    """
    one = recipe("one")
    configs = {
        _BASELINE: replace(one, network=replace(one.network, kind="lstm")),
        "ppo_mingru": one,
        "ppo_mlp": recipe("quickstart"),
        "dagger_mlp": recipe("imitation"),
    }
    result = _bench_training(configs, args.seconds)
    if args.json != "-":
        for name, row in result.items():
            print(
                f"{name}: {row['env_steps_per_second']:,.0f} env-steps/s (median), environment "
                f"{row['share_environment']:.0%}, inference {row['share_inference']:.0%}, "
                f"update {row['share_update']:.0%}; {row['ratio']:.2f} times {_BASELINE}'s speed"
            )
    emit_json(args.json, result)
    return 0


def add_env(parser: Parser) -> None:
    add_json(parser, "the figures")
    parser.add("--envs N", "environments side by side", whole(2), 256)
    parser.add("--seconds", "time for all of them, s", number(0.1), 10.0)


def run_env(args: Namespace) -> int:
    """Measure Gymnasium's environments on one core in turns: one alone, and many side by side."""
    from distrlcc.library import make_env, make_vec

    alone, many = make_env(), make_vec(num_envs=args.envs)
    note(f"measuring for {args.seconds:g} s ...")
    alone.action_space.seed(0)
    many.action_space.seed(0)
    for env in (alone, many):
        env.reset(seed=0)
        env.step(env.action_space.sample())  # compiles
    took, counts = [0.0, 0.0], [0, 0]
    while sum(took) < args.seconds or not all(counts):
        # A turn of one.
        actions = [alone.action_space.sample() for _ in range(1000)]
        begin = time.perf_counter()
        for action in actions:
            _, _, ended, cut, _ = alone.step(action)
            if ended or cut:
                alone.reset()
        took[0] += time.perf_counter() - begin
        # A turn of many.
        several = [many.action_space.sample() for _ in range(100)]
        begin = time.perf_counter()
        for each in several:
            many.step(each)
        took[1] += time.perf_counter() - begin
        counts = [counts[0] + len(actions), counts[1] + len(several) * args.envs]
    speeds = [count / seconds for count, seconds in zip(counts, took, strict=True)]
    ratio = speeds[1] / speeds[0]
    if args.json != "-":
        print(f"one environment: {speeds[0]:,.0f} steps/s")
        print(f"{args.envs} side by side: {speeds[1]:,.0f} steps/s, {ratio:.1f} times as many")
    result = {"one": speeds[0], "many": speeds[1], "num_envs": args.envs, "ratio": ratio}
    emit_json(args.json, result)
    return 0


def _bench_training(configs: dict[str, RunConfig], seconds: float) -> dict[str, dict[str, float]]:
    """Train in turns, an update each, for so many seconds after the warm-up; return the figures.

    Shares are of the whole time and add up to about 1; ``ratio`` is the median over the turns of
    the environment steps per second over the baseline's in the same turn.
    """
    import numpy as np

    from distrlcc.runs.run_state import env_run
    from distrlcc.runs.train import iterate

    # Take turns.
    note(f"measuring for {seconds:g} s, after {_WARM_UP} updates of each ...")
    trainers = {name: env_run(config) for name, config in configs.items()}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in configs}
    begin, turn = time.perf_counter(), 0
    while turn < _WARM_UP + _LEAST or time.perf_counter() - begin < seconds:
        for name, trainer in trainers.items():
            row = iterate(trainer)[0]
            if turn >= _WARM_UP:
                rows[name].append(row)
        turn += 1
        if turn == _WARM_UP:
            begin = time.perf_counter()
    # Sum up.
    speeds = {name: np.array([r["steps_per_second"] for r in own]) for name, own in rows.items()}
    shares = ("share_environment", "share_inference", "share_update")
    return {
        name: {
            "env_steps_per_second": float(np.median(speeds[name])),
            "best_env_steps_per_second": float(speeds[name].max()),
            **{share: float(np.mean([row[share] for row in own])) for share in shares},
            "ratio": float(np.median(speeds[name] / speeds[_BASELINE])),
            "updates": float(len(own)),
            "num_envs": float(configs[name].num_envs),
        }
        for name, own in rows.items()
    }
