"""Speed of a recipe's training, learning included, without logs and scorings."""

from __future__ import annotations

import time

import numpy as np

from distrlcc.learn.process import prepare_process
from distrlcc.runtime.run_config import RunConfig
from distrlcc.runtime.trainer import Trainer


def bench(config: RunConfig, seconds: float) -> dict[str, float]:
    """Train for some seconds after a warm-up; return median speed and shares of time.

    The shares are of the whole time and add up to about 1.
    """
    prepare_process()
    trainer = Trainer(config)
    trainer.iterate()
    trainer.iterate()
    rows: list[dict[str, float]] = []
    begin = time.perf_counter()
    while len(rows) < 3 or time.perf_counter() - begin < seconds:
        rows.append(trainer.iterate()[0])
    names = ("share_environment", "share_inference", "share_update")
    return {
        "env_steps_per_second": float(np.median([row["steps_per_second"] for row in rows])),
        "best_env_steps_per_second": max(row["steps_per_second"] for row in rows),
        **{name: float(np.mean([row[name] for row in rows])) for name in names},
        "updates": float(len(rows)),
        "num_envs": float(config.num_envs),
    }
