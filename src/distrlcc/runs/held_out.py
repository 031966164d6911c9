"""Scores a policy on held-out links while it trains, acting by argmax and by sampling.

In the simulator, whatever the world of the training: the score then depends on the policy alone.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.learner import Weights
from distrlcc.policy.numpy_policy import ActingPolicy, NumpyPolicy
from distrlcc.policy.policy_file import Acting, PolicyFile
from distrlcc.policy.spec import PolicySpec
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.seeding import stream_key

ACTINGS: tuple[Acting, Acting] = ("argmax", "sample")

_LINK_VALUES = ("utilisation", "queueing_delay", "loss")
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it fill the preferences from 0 to 1 evenly, however many links there are."""


@dataclass(frozen=True)
class HeldOutScore:
    """Means over the held-out links."""

    reward: float  # mean reward per step: what checkpoints are compared by
    utilisation: float
    queueing_delay: float  # in base round trips
    loss: float


class HeldOut:
    """The same links at every scoring."""

    def __init__(self, config: RunConfig | ImitateConfig, spec: PolicySpec) -> None:
        """Take a run's configuration and its policy's spec; raises ConfigError."""
        env, seconds = config.env.undisturbed(), config.held_out.seconds
        self._config = replace(env, world="simulated", stagger=False, episode_s=seconds, rooms=())
        self._links, self._spec, self._seed = config.held_out.links, spec, config.seed
        # Made once: environments made anew for each scoring left memory in pieces, hour by hour.
        self._env = LinkVectorEnv(
            self._links * self._config.agents,
            self._config,
            split="validation",
            with_labels=False,
            autoreset=False,
            preferences=np.modf(np.arange(self._links) * _GOLDEN)[0],
        )

    def score(self, weights: Weights) -> dict[Acting, HeldOutScore]:
        """Score weights under both ways of acting."""
        return {way: HeldOutScore(*self._means(self.by_link(weights, way))) for way in ACTINGS}

    def _means(self, scores: NDArray[np.float64]) -> list[float]:
        """Return means over the links on which an agent ran; raises ConfigError if none did."""
        ran = np.isfinite(scores[1:]).all(axis=0)
        if not ran.any():
            raise ConfigError(
                f"held_out.seconds is {self._config.episode_s:g}: no agent of the held-out links "
                "starts and ends within; take a longer time"
            )
        if not np.isfinite(scores[0, ran]).all():
            raise ConfigError(
                f"env.reward.name is {self._config.reward.name}: what it pays on held-out links is "
                "not finite"
            )
        return [float(mean) for mean in scores[:, ran].mean(axis=1)]

    def by_link(self, weights: Weights, acting: Acting) -> NDArray[np.float64]:
        """Return `HeldOutScore`'s values, ``[4, links]``, means over agents; NaN where none ran."""
        agents, env = self._config.agents, self._env
        count = env.num_envs
        policy = NumpyPolicy(PolicyFile(self._spec, weights.arrays, acting))
        actor = ActingPolicy(policy, count, stream_key(self._seed, "held-out"))
        sums, counts = np.zeros((2, 4, count))
        running = np.ones(count, bool)
        observation, info = env.reset(seed=0)
        while running.any():
            # All act, with draws of their own; rewards count while an agent's episode runs.
            active = info.get("active", running)
            observation, reward, _, truncated, info = env.step(actor.act(observation))
            sums[0] += np.where(running, reward, 0.0)
            counts[0] += running & active
            if agents > 1:  # an agent that joins starts without a past
                actor.reset(info["active"] & ~active)
            # What the link says of an episode counts once it ends.
            ended = running & truncated
            if ended.any():
                for row, name in zip(sums[1:], _LINK_VALUES, strict=True):
                    row[ended] = info["link_episode"][name][ended]
                counts[1:] += ended
            # A link on which all agents are done needs no more steps.
            for n in np.flatnonzero(env.over & running[::agents]):
                env.batch.retire(int(n))
            running &= ~np.repeat(env.over, agents)
        sums, counts = np.stack([sums, counts]).reshape(2, 4, self._links, agents).sum(axis=3)
        with np.errstate(invalid="ignore"):  # links on which no agent ran
            return np.asarray(sums / counts)
