"""What a run trains, without who collects: learner, scores, counters and their one state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import CheckpointError, ConfigError, PolicyFileError
from distrlcc.learn.collapse import CollapseAlarm, Restorer
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.gail import Gail
from distrlcc.learn.learner import Learner, Reducer, Weights
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.learn.threads import limit_threads
from distrlcc.policy.policy_file import PolicyFile, find_policy, load_policy
from distrlcc.policy.spec import DELAY_WEIGHTS, PREFERENCE, PolicySpec
from distrlcc.runs.held_out import ACTINGS, Acting, HeldOut
from distrlcc.runs.run_config import RunConfig


def policy_spec(config: RunConfig, env: LinkVectorEnv) -> PolicySpec:
    """Return the spec of the policy that a run trains on an environment."""
    space = env.single_action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    prices, options = config.env.reward.delay_weights, dict[str, str]()
    if prices:
        options = {PREFERENCE: "0.5", DELAY_WEIGHTS: " ".join(map(str, prices))}
    return PolicySpec(
        observation=config.env.observation,
        observation_size=env.batch.observation_size,
        action=config.env.action,
        action_kind="discrete" if discrete else "continuous",
        action_size=int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 1,
        kind=config.network.kind,
        hidden=config.network.hidden,
        activation=config.network.activation,
        step_ms=config.env.step_ms,
        interval_rtts=config.env.interval_rtts or None,
        options=options,
    )


def new_rollout(config: RunConfig, spec: PolicySpec, environments: int) -> Rollout:
    """Allocate what a run's learner learns from, of so many environments."""
    return Rollout.allocate(
        spec, config.rollout_length, environments, config.sequence_length, config.outcomes
    )


def build_learner(
    config: RunConfig, spec: PolicySpec, reducer: Reducer | None = None, device: str = "cpu"
) -> Learner:
    """Return the learner that a run's configuration has a section for.

    Raises:
        ConfigError: Its settings do not fit.
        DatasetError: GAIL's demonstrations are missing or do not fit.
    """
    if config.gail is not None:
        assert config.ppo is not None
        return Gail(config.gail, config.ppo, spec, config.seed, reducer, device)
    if config.ppo is not None:
        return PPO(config.ppo, spec, config.seed, reducer, device)
    assert config.dagger is not None
    return Dagger(config.dagger, spec, config.seed, reducer, device)


def starting_weights(path: str, spec: PolicySpec) -> Weights:
    """Return a policy file's weights, to train a policy of a spec from.

    Raises:
        PolicyFileError: There is no such file, or its policy has another shape.
    """
    policy = load_policy(find_policy(path))
    given, wanted = policy.spec.to_dict(), spec.to_dict()
    differing = [name for name in _SHAPE if given[name] != wanted[name]]
    if differing:
        raise PolicyFileError(
            f"{path}: its policy has {_listed(given, differing)}; expected "
            f"{_listed(wanted, differing)}, as this configuration says: change its keys with --set "
            "or take another file"
        )
    return Weights(0, policy.arrays)


_SHAPE = (
    "observation", "observation_size", "action", "action_kind", "action_size", "kind", "hidden",
    "activation",
)  # fmt: skip


def _listed(spec: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {spec[name]}" for name in names)


@dataclass
class Counters:
    """How far a run is, and its best policy so far."""

    update: int = 0
    steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    """Time since the start, s, scoring and saving included, time between resumes not."""
    best_score: float = -1e30
    best_update: int = 0
    best_acting: Acting = "sample"
    best_utilisation: float = 0.0
    best_queueing_delay: float = 0.0
    """In base RTTs."""


class Training:
    """A learner with its scores, set up from a run's configuration, with one state to save."""

    def __init__(
        self,
        config: RunConfig,
        spec: PolicySpec,
        reducer: Reducer | None = None,
        device: str = "cpu",
    ) -> None:
        """Build the learner.

        Args:
            config: The run's.
            spec: Of the policy.
            reducer: Exchanges with other ranks.
            device: Where the learner computes.

        Raises:
            ConfigError: Something in the configuration does not exist or fit.
        """
        limit_threads()
        self.config, self.spec = config, spec
        self.learner = build_learner(config, spec, reducer, device)
        if config.start_from:
            self.learner.load_weights(starting_weights(config.start_from, spec))
        self.held_out = HeldOut(config, spec)
        # An imitator may be certain, and a density's entropy falls below 0 without harm.
        free = config.dagger is not None or spec.action_kind == "continuous"
        least_entropy = float("-inf") if free else config.alarm.entropy_bound
        self.alarm = CollapseAlarm(least_entropy, config.alarm.silent_share_bound)
        self.recovery: Restorer | None = None
        if config.alarm.act and isinstance(self.learner, PPO | Gail):
            self.recovery = Restorer(config.alarm, self.learner)
        self.rang: str | None = None
        """What the alarm said of the newest update."""
        self.restored: str | None = None
        """What was done about it."""
        self.counters = Counters()
        self.best: Weights | None = None

    def commit(self, stats: CollectStats) -> None:
        """Count an update that was learned from these statistics, and see that it did no harm."""
        self.counters.update += 1
        self.counters.steps += int(stats.steps)
        self.counters.episodes += int(stats.episodes)
        arrays = self.learner.weights().arrays.values()
        finite = all(np.isfinite(array).all() for array in arrays)
        self.rang, self.restored = self.alarm.check(stats, finite=finite), None
        if self.recovery is not None:
            self.restored = self.recovery.watch(self.alarm, self.counters.update)
        if self.restored:
            self.alarm.reset()
        elif not finite and self.spec.action_kind == "continuous":
            raise ConfigError(
                "the weights are not numbers any more: training diverged, and no action can be "
                "taken; lower ppo.lr and begin again, or resume from a checkpoint before it"
            )

    def score(self) -> dict[str, float]:
        """Score the present weights on held-out links, and keep them if they are the best."""
        weights = self.learner.weights()
        scores = self.held_out.score(weights)
        newest = self.config.held_out.keep == "newest"
        acting = "sample" if newest else max(ACTINGS, key=lambda a: scores[a].reward)
        if newest or scores[acting].reward > self.counters.best_score:
            self.counters.best_score = scores[acting].reward
            self.counters.best_update = self.counters.update
            self.counters.best_acting = acting
            self.counters.best_utilisation = scores[acting].utilisation
            self.counters.best_queueing_delay = scores[acting].queueing_delay
            self.best = weights
        return {
            f"held_out_{name}_{acting}": value
            for acting, score in scores.items()
            for name, value in asdict(score).items()
        }

    def paused(self) -> bool:
        """Say whether rank 0 scored alone after the newest update."""
        update = self.counters.update
        return update > 0 and update % self.config.held_out.every == 0

    def policy(self) -> PolicyFile:
        """Return the best policy so far, acting in the better way."""
        counters, weights = self.counters, self.best or self.learner.weights()
        notes = {
            "recipe": self.config.recipe,
            "seed": self.config.seed,
            "update": counters.best_update,
            "steps": counters.steps,
            "held_out_reward": counters.best_score,
        }
        return PolicyFile(self.spec, weights.arrays, counters.best_acting, notes)

    def summary(self) -> str:
        """Return a line about the best policy."""
        counters = self.counters
        if self.best is None:
            return "held-out links: not scored yet"
        return (
            f"held-out links: utilisation {counters.best_utilisation:.3f}, queueing delay "
            f"{counters.best_queueing_delay:.3f} RTT (best at update {counters.best_update} of "
            f"{counters.update})"
        )

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on all ranks: all but environments and DAgger's data."""
        best = None
        if self.best is not None:
            best = {"version": self.best.version, "arrays": dict(self.best.arrays)}
        return {
            "learner": self.learner.shared_state(),
            "alarm": self.alarm.state_dict(),
            "recovery": None if self.recovery is None else self.recovery.state_dict(),
            "counters": asdict(self.counters),
            "best": best,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs."""
        return self.shared_state() | {"learner": self.learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same configuration."""
        self.load_shared_state(state)

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take over what all ranks share; environments and data stay.

        Raises:
            CheckpointError: The state is of a learner of another shape.
        """
        try:
            self.learner.load_state_dict(state["learner"])
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit this learner ({str(error).splitlines()[0]}): another "
                "version of distrlcc wrote it, as versions.json says; go on with that, or begin a "
                "new run"
            ) from error
        self.alarm.load_state_dict(state["alarm"])
        if self.recovery is not None:
            self.recovery.load_state_dict(state["recovery"])
        self.counters = Counters(**state["counters"])
        self.best = None
        if state["best"] is not None:
            self.best = Weights(int(state["best"]["version"]), state["best"]["arrays"])
