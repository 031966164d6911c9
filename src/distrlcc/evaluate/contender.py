"""Who is evaluated: a scheme by name, or a policy from its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distrlcc.control.schemes import SCHEMES
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.errors import ConfigError, PolicyFileError, unknown_name
from distrlcc.policy.numpy_policy import NumpyPolicy
from distrlcc.policy.policy_file import PolicyFile, find_policy
from distrlcc.seeding import normal, stream_key, uniform
from distrlcc.sim.suites import BEST_CWND


@dataclass(frozen=True)
class Contender:
    """A congestion control that is measured."""

    name: str
    policy: NumpyPolicy | None = None
    """None for a scheme that is named ``name``."""
    preference: float | None = None
    """From 0 (throughput) to 1 (delay), of a policy that has this for its last input."""

    @property
    def scheme(self) -> str:
        """The scheme that its flow runs in the simulator."""
        return self.name if self.policy is None else "agent"

    def env_config(self) -> EnvConfig:
        """Return what its agent sees and does; the default's 10 ms steps for a scheme."""
        if self.policy is None:
            return EnvConfig()
        spec = self.policy.spec
        return EnvConfig(
            observation=spec.observation,
            action=spec.action,
            step_ms=spec.step_ms,
            interval_rtts=spec.interval_rtts or 0.0,
            reward=RewardConfig(delay_weights=spec.delay_weights),
        )

    def tell(self, batch: LinkBatch) -> None:
        """Tell its agents what to prefer, after their links were loaded."""
        if self.preference is not None:
            batch.preference[:] = self.preference

    def actor(self, count: int, seed: int) -> Actor:
        """Return the policy's running state for ``count`` senders."""
        assert self.policy is not None
        return Actor(self.policy, count, seed)


class Actor:
    """A policy acting for N senders from their start: recurrent state and draws."""

    def __init__(self, policy: NumpyPolicy, count: int, seed: int) -> None:
        """Start ``count`` senders; equal seeds act equally."""
        self._policy, self._count = policy, count
        self._state = policy.initial_state(count)
        self._key, self._step = stream_key(seed, "evaluate"), 0

    def begin(self, which: NDArray[np.bool_]) -> None:
        """Let some senders, ``[N]``, begin anew: without a past."""
        self._state = np.where(which[:, None], np.float32(0.0), self._state)

    def act(self, observation: NDArray[np.float32]) -> NDArray[Any]:
        """Return the actions for ``[N, D]`` observations."""
        draws = None
        if self._policy.acting == "sample":
            rows = np.arange(self._count)
            if self._policy.spec.action_kind == "discrete":
                draws = uniform(self._key, rows, self._step)
            else:
                columns = np.arange(self._policy.spec.action_size)
                draws = normal(self._key, rows[:, None], self._step, columns[None])
        actions, self._state = self._policy.act(observation, self._state, draws)
        self._step += 1
        return actions


def contender_from_scheme(name: str) -> Contender:
    """Return a scheme as a contender.

    Raises:
        ConfigError: There is no such scheme.
    """
    if name != BEST_CWND and (name not in SCHEMES or name == "agent"):
        raise unknown_name("scheme", name, [*(n for n in SCHEMES if n != "agent"), BEST_CWND])
    return Contender(name)


def contender_from_file(path: str, taken: set[str], prefer: float | None = None) -> Contender:
    """Return a policy file as a contender, named after the file or its run's folder.

    Args:
        path: The file, a run's folder, or the name of a policy that is shipped.
        taken: Names that it must not have.
        prefer: What the user prefers, from 0 (throughput) to 1 (delay), which stands in the name;
            None: the policy's default, if it has any.

    Raises:
        PolicyFileError: The file is no whole policy, or of other spaces than it names.
        ConfigError: It names a space that does not exist, or has no preference to set.
    """
    place = find_policy(path)
    policy = NumpyPolicy.load(place)
    _check_spaces(path, policy)
    if prefer is not None and policy.spec.preference is None:
        raise ConfigError(
            f"{path}: --prefer needs a policy that was trained with preferences, as the recipe "
            "'preference' is; this one weighs delay as it was taught"
        )
    name = place.stem if place.stem != "policy" or not place.parent.name else place.parent.name
    name += "" if prefer is None else f"@{prefer:g}"
    while name in taken:
        name += "'"
    return Contender(name, policy, policy.spec.preference if prefer is None else prefer)


def _check_spaces(path: str, policy: NumpyPolicy) -> None:
    """Refuse a policy whose inputs or outputs are not those of the spaces that it names."""
    spec = policy.spec
    batch = LinkBatch(1, Contender("", policy).env_config())
    space = batch.actions.space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    kind, actions = ("discrete", batch.actions.size) if discrete else ("continuous", 1)
    if spec.action_kind != kind:
        raise PolicyFileError(
            f"{path}: its actions are {spec.action_kind}, those of {spec.action!r} are {kind}; "
            "train it again, or use the distrlcc that wrote it"
        )
    for what, has, expected in (
        (f"observation {spec.observation!r}", spec.observation_size, batch.observation_size),
        (f"action {spec.action!r}", spec.action_size, actions),
    ):
        if has != expected:
            raise PolicyFileError(
                f"{path}: its network takes {has} elements for {what}, this distrlcc has "
                f"{expected}; train it again, or use the distrlcc that wrote it"
            )


def contender_from_policy(name: str, policy: PolicyFile) -> Contender:
    """Return a policy that is in memory as a contender."""
    return Contender(name, NumpyPolicy(policy), policy.spec.preference)
