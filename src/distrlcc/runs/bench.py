"""Speed of recipes' training, learning included, without logs and scorings."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from distrlcc.learn.threads import limit_threads
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import env_run
from distrlcc.runs.train import iterate

_WARM_UP = 2
"""Updates that are not counted."""
_LEAST = 3
"""Updates that are counted at least."""


def bench(
    configs: Mapping[str, RunConfig], seconds: float, baseline: str
) -> dict[str, dict[str, float]]:
    """Train in turns, an update each; return median speeds, shares of time and relative costs.

    Args:
        configs: What is trained, by name.
        seconds: Time for all of them after the warm-up, s.
        baseline: Whose time per environment step is 1.

    Returns:
        By name; shares are of the whole time and add up to about 1, ``cost`` is the median over the
        turns of the time per environment step over the baseline's in the same turn.
    """
    limit_threads()
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
    speeds = {name: np.array([r["steps_per_second"] for r in own]) for name, own in rows.items()}
    shares = ("share_environment", "share_inference", "share_update")
    return {
        name: {
            "env_steps_per_second": float(np.median(speeds[name])),
            "best_env_steps_per_second": float(speeds[name].max()),
            **{share: float(np.mean([row[share] for row in own])) for share in shares},
            "cost": float(np.median(speeds[baseline] / speeds[name])),
            "updates": float(len(own)),
            "num_envs": float(configs[name].num_envs),
        }
        for name, own in rows.items()
    }
