"""Steps of environments: what some showed, and statistics that are made by hand."""

from typing import Any

import numpy as np

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.types import IntervalStats


def interval_stats(n: int = 1, /, **values: Any) -> IntervalStats:
    """Return the statistics of N senders, 0 where nothing else is said."""
    filled = dict.fromkeys(IntervalStats.names(), 0.0) | values
    return IntervalStats(**{k: np.broadcast_to(v, n).astype(float) for k, v in filled.items()})


def steps(env: LinkVectorEnv, begin: int, end: int) -> list[tuple[Any, ...]]:
    """Return what some steps showed: observations, rewards, truncations, labels, active agents."""
    rows = []
    for t in range(begin, end):
        actions = np.random.default_rng(t).integers(0, 6, 64)[env.first_index :][: env.num_envs]
        observation, reward, _, truncated, info = env.step(actions)
        active = info.get("active", truncated)
        rows.append((observation.copy(), reward, truncated, info["expert_action"], active))
    return rows


def check_same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
