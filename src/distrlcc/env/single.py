"""One sender on one link: ``gymnasium.make("distrlcc/Link-v0")``, for SB3, CleanRL and notebooks.

Import `distrlcc.env` first, or name the module in the id:
``gymnasium.make("distrlcc.env:distrlcc/Link-v0")``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.env.vector import LinkVectorEnv


class LinkEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """One link at a time; each reset draws the next link."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, config: EnvConfig | None = None, *, split: str = "train", **changes: Any
    ) -> None:
        """Set up a link environment.

        Args:
            config: What the environment is.
            split: ``train``, ``validation`` or ``test``.
            changes: Fields of `EnvConfig` to change, such as ``episode_s``; ``reward`` by name.
        """
        if isinstance(changes.get("reward"), str):
            changes["reward"] = RewardConfig(changes["reward"])
        config = replace(config or EnvConfig(), **{"stagger": False, **changes})
        self._vector = LinkVectorEnv(1, config, split=split, autoreset=False)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode on the next link; a seed starts the sequence of links anew."""
        super().reset(seed=seed)
        observation, info = self._vector.reset(seed=seed)
        return observation[0], _first(info)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Advance by one step."""
        observation, reward, terminated, truncated, info = self._vector.step(np.asarray([action]))
        info.pop("final_obs", None)
        return (
            observation[0],
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            _first({k: v for k, v in info.items() if not k.startswith("_")}),
        )


def _first(info: dict[str, Any]) -> dict[str, Any]:
    return {k: _first(v) if isinstance(v, dict) else v[0] for k, v in info.items()}
