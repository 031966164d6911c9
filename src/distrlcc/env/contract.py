"""The environment's contract, executable: what Gymnasium asks for, and what learners rely on."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env

from distrlcc.env.actions import ACTIONS
from distrlcc.env.config import EnvConfig
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS, RewardConfig
from distrlcc.env.vector import LinkEnv, LinkVectorEnv

N = 8


def check_all() -> Iterator[tuple[str, str | None]]:
    """Check every combination of spaces, and every reward; yield names and problems."""
    for observation, action in itertools.product(OBSERVATIONS, ACTIONS):
        config = EnvConfig(observation=observation, action=action, episode_s=0.3)
        yield f"{observation}, {action}", check(config)
    for reward in REWARDS:
        yield f"reward {reward}", check(EnvConfig(reward=RewardConfig(reward), episode_s=0.3))
    suites = ("random", "cellular", "dynamic", "indigo", "indigo-grid")
    config = EnvConfig(suites=suites, episode_s=0.3, interval_rtts=0.5)
    yield "every suite, intervals of RTTs", check(config)
    late = EnvConfig(action_delay_steps=3, jitter_ms=3.0, episode_s=0.3)
    yield "late actions, jitter", check(late)
    prices = RewardConfig(delay_weights=(0.05, 5.0))
    yield "preferences", check(EnvConfig(reward=prices, episode_s=0.3))


def check(config: EnvConfig) -> str | None:
    """Check one configuration; return what is wrong, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Gymnasium's taste in action bounds
            check_env(LinkEnv(config), skip_render_check=True)
    except Exception as error:
        return f"gymnasium's checker: {error}"
    return _check_vector(config)


def _check_vector(config: EnvConfig) -> str | None:
    first = _roll(LinkVectorEnv(N, config), seed=3)
    if first[-1] is not None:
        return str(first[-1])
    again = _roll(LinkVectorEnv(N, config), seed=3)
    if not _equal(first, again):
        return "the same seed gave different transitions"
    low = _roll(LinkVectorEnv(N // 2, config), seed=3)
    high = _roll(LinkVectorEnv(N // 2, config, first_index=N // 2), seed=3)
    joined = tuple(np.concatenate([a, b], axis=1) for a, b in zip(low[:3], high[:3], strict=True))
    if not _equal(first[:3], joined):
        return "two halves by first_index differ from the whole"
    return None


def _roll(env: LinkVectorEnv, seed: int) -> tuple[Any, ...]:
    observation, info = env.reset(seed=seed)
    box, rows = env.single_observation_space, [[], [], []]  # type: ignore[var-annotated]
    ended = 0
    for _ in range(60):
        actions = info["expert_action"]
        if actions.ndim == 1 and env.single_action_space.shape:
            actions = actions[:, None]
        observation, reward, terminated, truncated, info = env.step(actions)
        for row, value in zip(rows, (observation, reward, truncated), strict=True):
            row.append(value)
        if not all(box.contains(o) for o in observation):
            return (*rows, "an observation lies outside its space")
        if not np.isfinite(reward).all():
            return (*rows, "a reward is not finite")
        if terminated.any():
            return (*rows, "an episode was terminated: links do not end")
        if truncated.any():
            ended += int(truncated.sum())
            if not np.array_equal(info["_final_obs"], truncated):
                return (*rows, "final_obs does not mark the truncated episodes")
            told = env.batch.preference.shape[1]  # known before anything is seen
            if np.abs(observation[truncated][:, : observation.shape[1] - told]).max() > 0:
                return (*rows, "an episode's first observation is not the next episode's")
    if not ended:
        return (*rows, "no episode ended")
    return (*(np.array(row) for row in rows), None)


def _equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
