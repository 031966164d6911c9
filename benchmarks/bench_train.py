"""Measure training, learning included, in turns: PPO on `one`'s links, and two other recipes.

One process, one thread. What differs on `one`'s links is the recurrent layer alone: its own minGRU,
or an LSTM. Speeds are also given beside the LSTM's in the same turns.

Flags:
    $JSON
    --seconds N {0.1..} =45.0  time for all of them, s
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace

import numpy as np

from distrlcc.cli.output import emit_json, note
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import env_run
from distrlcc.runs.train import iterate

_BASELINE = "ppo_lstm"
_WARM_UP = 2
"""Updates that are not counted."""
_LEAST = 3
"""Updates that are counted at least."""


def run(args: Namespace) -> int:
    """Measure, and print a line for each recipe."""
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


def _bench_training(configs: dict[str, RunConfig], seconds: float) -> dict[str, dict[str, float]]:
    """Train in turns, an update each, for so many seconds after the warm-up; return the figures.

    Shares are of the whole time and add up to about 1; ``ratio`` is the median over the turns of
    the environment steps per second over the baseline's in the same turn.
    """
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
