"""Checks that several processes learn what one learns, update by update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.learn.learner import Weights
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.runs.identity import identity
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import env_run
from distrlcc.runs.source import Share

TOLERANCE = 1e-4
"""Greatest relative difference of weights and losses."""


@dataclass(frozen=True)
class Learned:
    """One process's actions, and what it learned from them."""

    actions: NDArray[Any]
    """``[U, T, N]``, of all updates."""
    metrics: list[dict[str, float]]
    weights: Weights
    rewards: NDArray[np.float64]
    """Of each update the sum of this process's rewards, and its steps, ``[U, 2]``."""


@dataclass(frozen=True)
class Parity:
    """How far several processes are from one."""

    same_actions: float
    """Share of actions that are the same."""
    metrics: dict[str, float]
    """Greatest relative difference of each of the learner's metrics that ranks share."""
    weights: float
    """Greatest difference of a weight, relative to the greatest weight of its layer."""
    ranks_equal: bool
    """Whether all ranks have the same weights, bit for bit."""

    @property
    def holds(self) -> bool:
        """Whether they learned the same."""
        close = max(self.weights, *self.metrics.values()) <= TOLERANCE
        return close and self.same_actions == 1.0 and self.ranks_equal


def check_parity(config: RunConfig, processes: int, updates: int = 3) -> Parity:
    """Train some updates in one process and in several, from the same seeds."""
    (one,), together = (learn(config, updates, count) for count in (1, processes))
    first, *others = together
    # Did all environments see the same actions?
    same = np.mean(np.concatenate([rank.actions for rank in together], axis=2) == one.actions)
    # How far are losses and weights from those of one process?
    differences = {
        name: max(
            _difference(a[name], b[name]) for a, b in zip(first.metrics, one.metrics, strict=True)
        )
        for name in one.metrics[0]
        if name != "explained_variance"  # each rank takes it of its own samples
    }
    weights = max(
        _difference(array, one.weights.arrays[name]) for name, array in first.weights.arrays.items()
    )
    # Have all ranks the same weights?
    equal = all(
        np.array_equal(array, other.weights.arrays[name])
        for other in others
        for name, array in first.weights.arrays.items()
    )
    return Parity(float(same), differences, weights, equal)


def _difference(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-3))


def learn(config: RunConfig, updates: int, processes: int) -> list[Learned]:
    """Train some updates in so many processes; return what each learned."""
    specs = [RankSpec("127.0.0.1", 0, slot, processes, elastic=False) for slot in range(processes)]
    return Launcher(learn_rank, (config, updates), specs).run().measured()


def learn_rank(spec: RankSpec, job: tuple[RunConfig, int]) -> Learned:
    """Train some updates as one of the processes."""
    config, updates = job
    group = ProcessGroup(spec, identity(config))
    share = Share.of(config.num_envs, spec.slot, spec.size, config.env.unit)
    state = env_run(config, share, group)
    actions, metrics, rewards = [], [], []
    with group:
        group.agree(0, ready=False)
        for update in range(updates):
            found = state.source.next(state.learner.weights(), None)
            assert found is not None
            rollout, stats = found
            actions.append(rollout.actions.copy())
            rewards.append((stats.reward, stats.steps))
            group.agree(update, ready=True)
            metrics.append(state.learner.update(rollout))
    return Learned(np.array(actions), metrics, state.learner.weights(), np.array(rewards))
