"""The environment's contract, executable: what Gymnasium asks for, and what learners rely on."""

import warnings
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkEnv, LinkVectorEnv

N = 8


def check(config: EnvConfig) -> str | None:
    """Check one configuration; return what is wrong, or None."""
    try:
        with np.errstate(all="ignore"):  # what is not finite is told as such
            _check_vector(config)
    except ValueError as error:
        return str(error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Gymnasium's taste in action bounds
            check_env(LinkEnv(config), skip_render_check=True)
    except Exception as error:
        return f"gymnasium's checker: {error}"
    return None


def _check_vector(config: EnvConfig) -> None:
    whole, again = (_roll(LinkVectorEnv(N, config)) for _ in range(2))
    _require(_equal(whole, again), "the same seed gave different transitions")
    halves = [_roll(LinkVectorEnv(N // 2, config, first_index=first)) for first in (0, N // 2)]
    joined = [np.concatenate(both, axis=1) for both in zip(*halves, strict=True)]
    _require(_equal(whole, joined), "two halves by first_index differ from the whole")


def _roll(env: LinkVectorEnv) -> list[NDArray[Any]]:
    observation, info = env.reset(seed=3)
    box, rows, ended = env.single_observation_space, [], 0
    told = env.batch.preference.shape[1]  # known before anything is seen
    for _ in range(60):
        actions = info["expert_action"]
        if actions.ndim == 1 and env.single_action_space.shape:
            actions = actions[:, None]
        observation, reward, terminated, truncated, info = env.step(actions)
        rows.append((observation, reward, truncated))
        inside = all(box.contains(o) for o in observation)
        _require(inside, "an observation lies outside its space")
        _require(bool(np.isfinite(reward).all()), "a reward is not finite")
        _require(not terminated.any(), "an episode was terminated: links do not end")
        if truncated.any():
            ended += 1
            marked = np.array_equal(info["_final_obs"], truncated)
            _require(marked, "final_obs does not mark the truncated episodes")
            fresh = not observation[truncated][:, : observation.shape[1] - told].any()
            _require(fresh, "an episode's first observation is not the next episode's")
    _require(ended > 0, "no episode ended")
    return [np.array(column) for column in zip(*rows, strict=True)]


def _require(fine: bool, problem: str) -> None:
    if not fine:
        raise ValueError(problem)


def _equal(some: list[NDArray[Any]], others: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, some, others))
