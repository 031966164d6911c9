"""Measure Gymnasium's environments on one core in turns: one alone, and many side by side.

Flags:
    $JSON
    --envs N {2..} =256  environments side by side
    --seconds N {0.1..} =10.0  time for all of them, s
"""

from __future__ import annotations

import time
from argparse import Namespace

from distrlcc.cli.output import emit_json, note
from distrlcc.library import make_env, make_vec


def run(args: Namespace) -> int:
    """Measure, and print both speeds."""
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
