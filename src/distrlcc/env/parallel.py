"""Several senders on one link as a PettingZoo environment; it needs the extra ``pettingzoo``."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distrlcc.config import typed
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import make_vector_env
from distrlcc.errors import unknown_name
from distrlcc.extras import missing

try:
    from pettingzoo import ParallelEnv
except ImportError:
    raise missing("pettingzoo") from None

Observation = NDArray[np.float32]


class SharedLinkParallelEnv(ParallelEnv):  # type: ignore[misc]  # it has no types
    """One link at a time, with up to K agents; each reset draws the next link.

    Agents are ``agent_0`` to ``agent_K-1``, the first flows of the link's scenario. An agent that
    starts later enters ``agents`` then, with an observation of zeros; one that stops is truncated,
    as are all when the link's time is over. None is ever terminated. While no agent runs, time goes
    on by itself.
    """

    metadata: dict[str, Any] = {"name": "distrlcc_shared_link_v0", "render_modes": []}  # noqa: RUF012

    @typed
    def __init__(
        self, config: EnvConfig | None = None, *, split: str = "train", **changes: Any
    ) -> None:
        """Set up a link with 4 agents of the suite ``shared``, or as ``changes`` say."""
        config = config or EnvConfig(suites=("shared",), agents=4, episode_s=12.0)
        agents = changes.get("agents", config.agents)
        own = {"split": split, "autoreset": False, "with_labels": True, "with_parts": False}
        self._vector = make_vector_env(agents, config, **own, **{"stagger": False, **changes})
        self.possible_agents = [f"agent_{k}" for k in range(agents)]
        self._row = {agent: k for k, agent in enumerate(self.possible_agents)}
        self.agents: list[str] = []
        self.render_mode = None
        # Copies: spaces have generators, and each agent's is seeded by itself.
        spaces = self._vector.single_observation_space, self._vector.single_action_space
        self._spaces = {agent: deepcopy(spaces) for agent in self.possible_agents}
        space = self._vector.action_space
        self._idle = np.zeros(space.shape or (), space.dtype)

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return an agent's observation space: that of all."""
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return an agent's action space: that of all."""
        return self._spaces[agent][1]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Start an episode on the next link; a seed starts the sequence of links anew."""
        known = {key: value for key, value in (options or {}).items() if key != "options"}
        observation, info = self._vector.reset(seed=seed, options=known)
        observation, info = self._until_active(observation, info)
        return self._of(self.agents, observation), self._infos(self.agents, info)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]
    ]:
        """Step with the actions of all ``agents``; raises ConfigError or ValueError at others."""
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(f"no action for {', '.join(missing)}; expected one for each of agents")
        for agent in actions:
            if agent not in self._row:
                raise unknown_name("agent", agent, self._row)
        rows = self._idle.copy()
        for agent in self.agents:
            given = np.asarray(actions[agent])
            if not np.can_cast(given.dtype, rows.dtype, "same_kind"):  # 1.7 is no 1
                raise ValueError(f"{agent}: {given} is not of {self._spaces[agent][1]}")
            rows[self._row[agent]] = given
        before = self.agents
        observation, reward, _, truncated, info = self._vector.step(rows)
        # What those see that were there before; the last of their episode where it ended.
        cut = {agent: bool(truncated[self._row[agent]]) for agent in before}
        seen = self._of(before, info.get("final_obs", observation))
        told = self._infos(before, info)
        for agent in filter(cut.get, before):
            means = info["link_episode"].items()
            told[agent]["link_episode"] = {k: float(v[self._row[agent]]) for k, v in means}
        # Agents that join now, or later where none is left.
        if self._vector.over[0]:
            self.agents = []
        else:
            observation, info = self._until_active(observation, info)
        joined = [agent for agent in self.agents if agent not in before]
        return (
            seen | self._of(joined, observation),
            {a: float(reward[self._row[a]]) for a in before} | dict.fromkeys(joined, 0.0),
            dict.fromkeys([*before, *joined], False),
            cut | dict.fromkeys(joined, False),
            told | self._infos(joined, info),
        )

    def _until_active(
        self, observation: NDArray[Any], info: dict[str, Any]
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Let time go on until an agent is active or the link's time is over; set `agents`."""
        over = False
        while True:
            active = info.get("active", np.ones(len(self.possible_agents), bool))
            self.agents = [a for a, on in zip(self.possible_agents, active, strict=True) if on]
            if self.agents or over:
                return observation, info
            observation, _, _, _, info = self._vector.step(self._idle)
            over = bool(self._vector.over[0])

    def _of(self, agents: list[str], rows: NDArray[Any]) -> dict[str, Observation]:
        return {agent: rows[self._row[agent]].copy() for agent in agents}

    def _infos(self, agents: list[str], info: dict[str, Any]) -> dict[str, dict[str, Any]]:
        names = ("cwnd", "expert_action")
        return {agent: {name: info[name][self._row[agent]] for name in names} for agent in agents}

    def close(self) -> None:
        """Give back what is held open."""
        self._vector.close()
