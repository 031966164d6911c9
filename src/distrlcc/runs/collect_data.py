"""Writes an expert's trajectories to disk: rounds of whole episodes, side by side.

Every episode of a round starts together and is taken once it ends, so no episode is cut short and
short ones are not preferred. What the expert does is the environment's label: the oracle's, or the
action that follows the scheme that drives the links. Of several schemes each link has the one with
the greatest return there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distrlcc.config import to_toml
from distrlcc.data.manifest import OUTCOME_SIZE, Manifest, Origin, Spaces
from distrlcc.data.writer import DatasetWriter, Episode
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.runs.collect_config import CollectConfig
from distrlcc.runs.disturbance import Disturbance
from distrlcc.runs.progress import Progress
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.versions import package_versions


class ExpertRounds:
    """Rounds of episodes in which the expert acts."""

    def __init__(self, config: CollectConfig) -> None:
        """Build the environment.

        Raises:
            ConfigError: A suite or the scheme does not exist, or a shard is less than an episode.
            TraceError: A trace cannot be read.
        """
        if config.shard_steps < config.episode_steps:
            raise ConfigError(
                f"shard_steps is {config.shard_steps}; expected {config.episode_steps} or more, "
                "an episode's steps (env.episode_s / env.step_ms)"
            )
        wanted = config.episodes or math.ceil(config.steps / max(config.episode_steps - 1, 1))
        # A round fits in a shard, so that memory is bounded; rounds are of equal size.
        most = max(1, min(config.num_envs, config.shard_steps // config.episode_steps))
        rounds = math.ceil(wanted / most)
        self.count = math.ceil(wanted / rounds)
        self._length = config.episode_steps
        self._envs = [
            LinkVectorEnv(
                self.count,
                replace(config.env, stagger=False),
                split=config.split,
                seed=config.seed,
                with_outcomes=True,
                autoreset=False,
                expert=scheme,
            )
            for scheme in config.schemes
        ]
        self.spaces = spaces_of(self._envs[0])
        self._disturbance = Disturbance(
            config.disturb, self._envs[0].single_action_space, self.count, config.seed
        )
        self._rounds = 0

    def run(self) -> list[Episode]:
        """Run the next round and return its episodes, in the environments' order."""
        best = self._run(self._envs[0])
        for env in self._envs[1:]:
            both = zip(best, self._run(env), strict=True)
            best = [max(pair, key=lambda episode: episode.scores["return"]) for pair in both]
        self._rounds += 1
        return best

    def _run(self, env: LinkVectorEnv) -> list[Episode]:
        count = self.count
        observation, info = env.reset()
        observations = np.zeros((count, self._length, self.spaces.observation_size), np.float32)
        actions, experts = self._actions(), self._actions()
        rewards = np.zeros((count, self._length), np.float32)
        outcomes = np.zeros((count, self._length, OUTCOME_SIZE), np.float32)
        steps = np.zeros(count, np.int64)
        final = np.zeros((count, self.spaces.observation_size), np.float32)
        scores: list[dict[str, float]] = [{} for _ in range(count)]
        running, t = np.ones(count, bool), 0
        while running.any():
            labels = info["expert_action"]
            taken = self._disturbance.act(labels, self._rounds, t)
            observations[:, t] = observation
            actions[:, t] = taken.reshape(actions[:, t].shape)
            experts[:, t] = labels.reshape(actions[:, t].shape)
            observation, reward, _, truncated, info = env.step(taken)
            rewards[:, t], outcomes[:, t] = reward, info["outcome"]
            t += 1
            for n in np.flatnonzero(running & truncated):
                steps[n], final[n] = t, info["final_obs"][n]
                scores[n] = {key: float(row[n]) for key, row in info["link_episode"].items()}
            running &= ~truncated
        return [
            Episode(
                link, observations[n, : steps[n]], actions[n, : steps[n]],
                experts[n, : steps[n]], rewards[n, : steps[n]], outcomes[n, : steps[n]],
                final[n], scores[n],
            )
            for n, link in enumerate(env.link_names())
        ]  # fmt: skip

    def _actions(self) -> NDArray[Any]:
        shape = (self.count, self._length)
        if self.spaces.action_kind == "discrete":
            return np.zeros(shape, np.int32)
        return np.zeros((*shape, self.spaces.action_size), np.float32)


def spaces_of(env: LinkVectorEnv) -> Spaces:
    """Return what an environment's agents see and do."""
    space = env.single_action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    return Spaces(
        env.config.observation,
        env.batch.observation_size,
        env.config.action,
        "discrete" if discrete else "continuous",
        int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 1,
    )


def collect_data(
    rounds: ExpertRounds, config: CollectConfig, out: Path, progress: Progress
) -> Manifest | int:
    """Collect a data set.

    Args:
        rounds: Of the same configuration.
        config: What to collect.
        out: A new or empty folder.
        progress: Where the user looks.

    Returns:
        The manifest that was written; or the number of the signal that ended it early, and nothing
        is kept.

    Raises:
        OutputError: The folder is not empty, or cannot be written.
    """
    origin = Origin(
        config.scheme,
        config.env.suites,
        config.split,
        config.seed,
        rounds.count,
        config.disturb,
        to_toml(config.env),
        {**package_versions(), "pyarrow": pa.__version__},
    )
    with DatasetWriter(out, rounds.spaces, origin, config.shard_steps) as writer, Stopper() as stop:
        while not _enough(writer, config):
            episodes = rounds.run()
            if stop.signal:
                writer.discard()
                return stop.signal
            for episode in episodes:
                if not _enough(writer, config):
                    writer.add(episode)
            scores = {key: np.mean([e.scores[key] for e in episodes]) for key in episodes[0].scores}
            progress.update({"steps": writer.steps, **scores})
        return writer.finish()


def _enough(writer: DatasetWriter, config: CollectConfig) -> bool:
    if config.episodes:
        return writer.episodes >= config.episodes
    return writer.steps >= config.steps
