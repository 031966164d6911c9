"""A toy vector environment with the contract of distrlcc.env, and helpers to train on it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from distrlcc import seeding
from distrlcc.data.manifest import Origin, Spaces
from distrlcc.data.reader import StoredData
from distrlcc.data.writer import DatasetWriter, Episode
from distrlcc.learn.collect import Collector, CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.learn.model import Learner
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec
from distrlcc.types import TRUTH

Task = Literal["match", "track", "memory"]
LENGTH = 8
ACTIONS = 3


class ToyEnv(VectorEnv[Any, Any, Any]):
    """Episodes of 8 steps, staggered, every draw named by the environment's global index.

    ``match``: take the action whose observation is greatest; reward 1 for a hit.
    ``track``: continuous; reward 1 less the squared distance to the first observation.
    ``memory``: the cue is shown in the first observation only; reward 1 for repeating it.
    """

    def __init__(self, count: int, task: Task, first_index: int = 0) -> None:
        self.num_envs = count
        self.first_index = first_index
        self.task = task
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.single_action_space = (
            gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
            if task == "track"
            else gym.spaces.Discrete(ACTIONS)
        )
        self.index = np.arange(first_index, first_index + count)
        self.luck = 1.0 - 2.0 * (self.index % 2)
        self.clock = 0
        self.seed = 0

    def _observe(self, age: NDArray[np.int64]) -> NDArray[np.float32]:
        key = seeding.stream_key(self.seed, "toy")
        born = self.clock - age
        cue = (seeding.uniform(key, self.index, born, 99) * ACTIONS).astype(np.int64)
        if self.task == "memory":
            obs = np.zeros((self.num_envs, 4))
            first = age == 0
            obs[first, cue[first]] = 1.0
            obs[:, 3] = age / LENGTH
            self.label = cue
        else:
            dimension = np.arange(4)
            obs = 5.0 + 2.0 * seeding.normal(key, self.index[:, None], self.clock, dimension)
            self.label = obs[:, :ACTIONS].argmax(axis=1)
        if self.task == "track":
            self.label = ((obs[:, 0] - 5.0) / 2.0).astype(np.float32)
        return obs.astype(np.float32)

    def _info(self) -> dict[str, Any]:
        # Windows start at 10 and stand at 2; those of even environments once rise at age 4.
        rises = (self.age == 0) | ((self.index % 2 == 0) & (self.age == 4))
        return {
            "expert_action": self.label.copy(),
            "at_minimum": ~rises,
            "truth": np.tile(self.luck.astype(np.float32), (len(TRUTH), 1)).T,
            "outcome": np.zeros((self.num_envs, 3), np.float32),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed, self.clock = seed or 0, 0
        self.age = self.index % LENGTH
        self.returns = np.zeros(self.num_envs)
        return self._observe(self.age), self._info()

    def step(self, actions: NDArray[Any]) -> Any:
        if self.task == "track":
            assert actions.shape == (self.num_envs, 1)
            rewards = 1.0 - np.square(actions[:, 0] - self.label).astype(np.float64)
        else:
            assert actions.shape == (self.num_envs,)
            rewards = (actions == self.label).astype(np.float64)
        self.clock += 1
        self.age = self.age + 1
        self.returns += rewards
        done = self.age >= LENGTH
        final = self._observe(self.age)
        self.age = np.where(done, 0, self.age)
        obs = self._observe(self.age)
        info = self._info()
        if done.any():
            info["final_obs"], info["_final_obs"] = final, done
            zeros = np.zeros(self.num_envs)
            info["link_episode"] = {
                "return": self.returns.copy(),
                "utilisation": zeros,
                "queueing_delay": zeros,
                "loss": zeros,
            }
            info["_link_episode"] = done
            self.returns = np.where(done, 0.0, self.returns)
        return obs, rewards, np.zeros(self.num_envs, np.bool_), done, info


def make_spec(task: Task = "match", **changes: Any) -> PolicySpec:
    values: dict[str, Any] = {
        "observation": "toy",
        "observation_size": 4,
        "action": "toy",
        "action_kind": "continuous" if task == "track" else "discrete",
        "action_size": 1 if task == "track" else ACTIONS,
        "hidden": (32, 32),
    }
    return PolicySpec(**{**values, **changes})


def setup(
    learner: Any, config: Any, task: Task = "match", seed: int = 0, count: int = 32, **changes: Any
) -> tuple[Any, Collector, Rollout]:
    """Return a learner, and a collector and a rollout for it."""
    spec = make_spec(task, **changes)
    rollout = Rollout.allocate(spec, config.rollout_length, count, config.sequence_length)
    return learner(config, spec, seed), Collector(ToyEnv(count, task), spec, seed), rollout


def say(learner: Any, *probabilities: float) -> None:
    """Let a learner's network take its actions with these probabilities, whatever it sees."""
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.zero_()
        learner.network.policy_head.bias.copy_(torch.tensor(probabilities).log())


def same_weights(one: Weights, other: Weights, rtol: float = 0.0, atol: float = 0.0) -> None:
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_allclose(array, other.arrays[name], rtol, atol, err_msg=name)


def collected(
    learner: Learner, collector: Collector, rollout: Rollout, stop: Any = None
) -> CollectStats:
    """Fill a rollout with what the learner's weights do."""
    collector.set_weights(learner.weights())
    return collector.collect(rollout, stop)


def train(learner: Learner, collector: Collector, rollout: Rollout, updates: int) -> list[float]:
    """Run updates and return each collection's mean reward."""
    rewards = []
    for _ in range(updates):
        rewards.append(collected(learner, collector, rollout).metrics()["reward"])
        learner.update(rollout)
    return rewards


def store(
    folder: Path, spaces: Spaces, episodes: Iterable[Any], shard_steps: int = 100, env: str = ""
) -> StoredData:
    """Write episodes of observations and of what the expert, who also acted, did; open them."""
    origin = Origin("oracle", ("random",), "train", 0, 1, 0.0, env, {})
    scores = dict.fromkeys(("return", "utilisation", "queueing_delay", "loss"), 0.0)
    with DatasetWriter(folder, spaces, origin, shard_steps) as writer:
        for seen, own in episodes:
            obs, (count, _) = np.asarray(seen, np.float32), np.shape(seen)
            rewards, outcomes = np.zeros(count, np.float32), np.zeros((count, 3), np.float32)
            writer.add(Episode("", obs, own, own, rewards, outcomes, obs[0], scores))
        writer.finish()
    return StoredData(folder)


EPISODES, STEPS = 40, 21
"""Of `write_data`."""


def write_data(folder: Path, task: Task, spec: PolicySpec) -> StoredData:
    """Write episodes of what the toy's expert does, and open them."""
    env, discrete = ToyEnv(EPISODES, task), task != "track"
    obs, labels = [env.reset(seed=1)[0]], []
    for _ in range(STEPS + 8):
        labels.append(env.label if discrete else env.label[:, None])
        obs.append(env.step(labels[-1])[0])
    episodes = []
    for n in range(EPISODES):
        steps = slice(8 - n % 8, 8 - n % 8 + STEPS)
        episodes.append([np.array([row[n] for row in rows[steps]]) for rows in (obs, labels)])
    return store(folder, Spaces("toy", 4, "toy", spec.action_kind, spec.action_size), episodes)
