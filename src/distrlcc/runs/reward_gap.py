"""By how much a policy trails a baseline on given links: the gap that a curriculum searches for.

Both are paid by the environment: the baseline drives the links itself, while its rewards are taken
from the same statistics of the same steps as the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.batch import DemonstrationBatch, LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import PolicyFile
from distrlcc.seeding import normal, stream_key, uniform
from distrlcc.sim.scenario import Scenario

Floats = NDArray[np.float64]
Act = Callable[[NDArray[np.float32]], NDArray[Any]]


def baseline_rewards(scheme: str, config: EnvConfig, scenarios: Sequence[Scenario]) -> Floats:
    """Return a scheme's mean reward per step on each link, ``[L]``; ``oracle`` is the oracle's."""
    config = _simulated(config)
    if scheme == "oracle":
        oracle = LinkBatch(len(scenarios), config)
        return _mean_rewards(oracle, scenarios, lambda _: oracle.labels())
    batch = DemonstrationBatch(len(scenarios), config, scheme=scheme)
    return _mean_rewards(batch, scenarios, lambda _: batch.labels())


def policy_rewards(
    policy: PolicyFile, config: EnvConfig, scenarios: Sequence[Scenario], seed: int
) -> Floats:
    """Return a policy's mean reward per step on each link, ``[L]``; the seed is of its draws."""
    count, actor = len(scenarios), NumpyPolicy(policy)
    state, step = actor.initial_state(count), 0
    key, rows = stream_key(seed, "reward-gap"), np.arange(count)

    def act(observation: NDArray[np.float32]) -> NDArray[Any]:
        nonlocal state, step
        if policy.spec.action_kind == "discrete":
            draws = uniform(key, rows, step)
        else:
            draws = normal(key, rows[:, None], step, np.arange(policy.spec.action_size)[None])
        actions, state = actor.act(observation, state, draws)
        step += 1
        return actions

    batch = LinkBatch(count, _simulated(config), with_labels=False)
    return _mean_rewards(batch, scenarios, act)


def _simulated(config: EnvConfig) -> EnvConfig:
    return replace(config, world="simulated")


def _mean_rewards(batch: LinkBatch, scenarios: Sequence[Scenario], act: Act) -> Floats:
    """Drive every link to its end and return mean rewards per step."""
    for n, scenario in enumerate(scenarios):
        batch.load(n, scenario)
    ends = np.array([scenario.duration_s for scenario in scenarios])
    rewards, steps, time = np.zeros((3, len(scenarios)))
    observation = batch.first_observation(np.arange(len(scenarios)))
    running = np.ones(len(scenarios), bool)
    while running.any():
        observation, reward = batch.step(act(observation))
        rewards += np.where(running, reward, 0.0)
        steps += running
        time += batch.newest.duration
        over = running & (time >= ends - 1e-9)
        for link in np.flatnonzero(over):
            batch.retire(int(link))
        running &= ~over
    return np.asarray(rewards / steps)
