"""A run whose environments are in this process: environment, collector and learner in one loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector, CollectStats
from distrlcc.learn.learner import Reducer
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.training import Training, new_rollout, policy_spec


@dataclass(frozen=True)
class Share:
    """The environments that one process owns."""

    first: int
    """Global index of the first one."""
    count: int

    @classmethod
    def least(cls, agents: int, first: int = 0) -> Share:
        """Return the share of one link, with which to see that a configuration fits."""
        return cls(first, agents)

    @classmethod
    def of(cls, num_envs: int, slot: int, size: int, agents: int = 1) -> Share:
        """Return a slot's share; a late comer's (slot ``size`` or more) lies beyond the planned.

        A link's ``agents`` environments stay together.

        Raises:
            ConfigError: There is not one environment for each.
        """
        links = num_envs // agents
        if links < size:
            least = "one" if agents == 1 else f"{agents}, one link's agents,"
            raise ConfigError(
                f"num_envs is {num_envs}: expected at least {least} for each of {size}"
            )
        if slot >= size:
            count = links // size
            return cls((links + (slot - size) * count) * agents, count * agents)
        first = links * slot // size
        return cls(first * agents, (links * (slot + 1) // size - first) * agents)


class Trainer(Training):
    """Training whose environments are in this process."""

    def __init__(
        self,
        config: RunConfig,
        share: Share | None = None,
        reducer: Reducer | None = None,
        device: str = "cpu",
    ) -> None:
        """Build environment, learner and collector.

        Args:
            config: The run's.
            share: Environments to own; all by default.
            reducer: Exchanges with other ranks.
            device: Where the learner computes; acting is NumPy's.

        Raises:
            ConfigError: Something in the configuration does not exist or fit.
            TraceError: A trace cannot be read.
        """
        share = share or Share(0, config.num_envs)
        self.env = LinkVectorEnv(
            share.count,
            config.env,
            seed=config.seed,
            first_index=share.first,
            with_labels=config.dagger is not None,
            with_outcomes=config.outcomes > 0,
        )
        super().__init__(config, policy_spec(config, self.env), reducer, device)
        self.collector = Collector(self.env, self.spec, config.seed)
        self.rollout = new_rollout(config, self.spec, share.count)

    def collect(self, stop: Callable[[int], bool] | None = None) -> CollectStats:
        """Fill the rollout with the learner's present weights; see `Collector.collect`."""
        self.collector.set_weights(self.learner.weights())
        return self.collector.collect(self.rollout, stop)

    def iterate(self) -> tuple[dict[str, float], CollectStats]:
        """Collect one rollout and learn from it."""
        begin = time.perf_counter()
        stats = self.collect()
        collected = time.perf_counter()
        metrics = self.learner.update(self.rollout)
        learned = time.perf_counter()
        self.commit(stats)
        seconds = learned - begin
        return {
            **stats.metrics(),
            **metrics,
            "steps": float(self.counters.steps),
            "steps_per_second": stats.steps / seconds,
            "share_environment": stats.environment_seconds / seconds,
            "share_inference": stats.inference_seconds / seconds,
            "share_update": (learned - collected) / seconds,
        }, stats

    def state_dict(self) -> dict[str, Any]:
        """Return everything that one process needs to resume bit for bit."""
        return super().state_dict() | {
            "collector": self.collector.state_dict(),
            "env": self.env.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same configuration; with other environments, on new links.

        Emulated links begin anew, too: packets on their way are in no state.
        """
        same = "env" in state and len(state["env"]["sums"]) == self.env.num_envs
        if same and not self.env.batch.resumable:
            self.load_shared_state(state)
            self.collector.begin_at(self.counters.update * self.config.rollout_length)
        elif same:
            self.load_shared_state(state)
            self.collector.load_state_dict(state["collector"])
            self.env.load_state_dict(state["env"])
        else:  # DAgger's data are of the environments, too
            self.load_shared_state(state | {"learner": state["learner"] | {"dataset": None}})
            self.collector.begin_at(self.counters.update * self.config.rollout_length)
