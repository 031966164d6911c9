"""Collects experience: steps a vector environment with a policy and writes rollouts.

The same in every topology; it runs in NumPy, so that acting in training is what a policy file does
on real traffic. Every draw is named by (seed, environment's global index, step), so that one
process with 2n environments and two with n take the same actions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from distrlcc import seeding
from distrlcc.learn.learner import Weights
from distrlcc.learn.rollout import Rollout
from distrlcc.policy import numpy_policy
from distrlcc.policy.spec import PolicySpec
from distrlcc.types import copy_state, restore_state


@dataclass(slots=True)
class CollectStats:
    """Sums over a collection; add two with :meth:`merge`."""

    steps: float = 0.0  # environment steps
    reward: float = 0.0  # sum of rewards
    entropy: float = 0.0  # sum over steps of the policy's entropy, nats
    minimum_window: float = 0.0  # steps on which the window stood at its minimum
    guarded: float = 0.0  # steps in which the guard lowered the window that was chosen
    episodes: float = 0.0  # episodes that ended
    silent_episodes: float = 0.0  # of these, those with the window nearly always at its minimum
    episode_return: float = 0.0  # sum of ended episodes' returns; likewise the next three
    utilisation: float = 0.0
    queueing_delay: float = 0.0
    loss: float = 0.0
    environment_seconds: float = 0.0  # time in `env.step`
    inference_seconds: float = 0.0  # time in choosing actions
    timed_steps: float = 0.0  # environment steps in real time
    late_steps: float = 0.0  # of these, those that were late
    late_batches: float = 0.0  # those of which nothing was learned: too many late steps

    @property
    def late_share(self) -> float:
        """Share of the steps in real time that were late."""
        return self.late_steps / max(self.timed_steps, 1.0)

    @property
    def flaw(self) -> str:
        """The first sum that is not finite; empty: all are."""
        return next((f.name for f in fields(self) if not math.isfinite(getattr(self, f.name))), "")

    def merge(self, other: "CollectStats") -> None:
        """Add another collection's sums."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def metrics(self) -> dict[str, float]:
        """Return means; those of steps and episodes only if there were any."""
        steps, episodes = self.steps, self.episodes
        means = {"episodes": episodes}
        if steps:
            means |= {
                "reward": self.reward / steps,
                "policy_entropy": self.entropy / steps,
                "minimum_window_share": self.minimum_window / steps,
                "guarded_share": self.guarded / steps,
            }
        if self.timed_steps:
            means |= {"late_steps": self.late_share, "late_batches": self.late_batches}
        if episodes:
            for name in ("episode_return", "utilisation", "queueing_delay", "loss"):
                means[name] = getattr(self, name) / episodes
            means["silent_episode_share"] = self.silent_episodes / episodes
        return means


MOST_LATE_LEARNED = 0.3
"""A batch with a larger share of late steps is discarded: it shows more of a busy machine than of
its links. With 34% late, delays of 27 round trips were seen, which no queue held."""
SILENT_STEPS = 2  # an episode of fewer steps is not called silent
SILENT_SHARE = 0.9
"""An episode is silent if its window stood at its minimum for this share of its steps. It begins
above, and a policy that has fallen silent still tries something now and then."""
_STATE = "step started obs labels starts silent age state truth"
# Rows [M], environments [M], final observations [M, D] and recurrent states [P, M, H] of episodes
# that were cut off in one step.
_Ends = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]


class Collector:
    """Keeps observations, recurrent state and step count between rollouts."""

    def __init__(self, env: VectorEnv[Any, Any, Any], spec: PolicySpec, seed: int) -> None:
        """Take the environment; it is reset at the first collection.

        Args:
            env: SAME_STEP autoreset; ``first_index`` is environment 0's global index; info has
                ``expert_action``, ``at_minimum``, where agents join and leave ``active``,
                ``outcome`` and ``truth`` if rollouts keep them, in real time ``late``, and at
                episodes' ends ``final_obs``, ``link_episode``.
            spec: The policy's spec.
            seed: Of the environments and of acting; the same on every rank.
        """
        self._env, self._spec, self._seed = env, spec, seed
        count = env.num_envs
        first: int = getattr(env, "first_index", 0)
        self._indices = np.arange(first, first + count)
        self._rows = np.arange(count)
        self._step, self._started = 0, False
        self._obs = np.zeros((count, spec.observation_size), np.float32)
        self._labels = spec.no_actions(count)
        self._starts = np.ones(count, np.bool_)
        self._silent, self._age = np.zeros((2, count), np.int64)  # steps at the minimum, and all
        self._active: NDArray[np.bool_] | None = None  # None: every row always
        self._state = np.zeros(spec.state_shape(count), np.float32)
        self._truth = np.zeros((count, 0), np.float32)  # nothing is known before the first step

    def set_weights(self, weights: Weights) -> None:
        """Act with these weights from now on."""
        self._version, self._expert_acts = weights.version, weights.expert_acts
        self._network = numpy_policy.NumpyNetwork(self._spec, weights.arrays)

    def begin_at(self, step: int) -> None:
        """Begin anew, with links and draws that no step before ``step`` can have seen."""
        self._step = step
        self._started = False

    def reset(self) -> None:
        """Start new episodes everywhere."""
        options = {"options": {"episode": self._step}} if self._step else {}
        obs, info = self._env.reset(seed=self._seed, **options)
        self._obs[:] = obs
        self._labels = self._labels_of(info)
        self._starts[:] = True
        self._silent[:] = 0
        self._truth = np.zeros_like(self._truth)
        self._active = info.get("active")
        self._age[:] = 0
        self._started = True

    def collect(self, rollout: Rollout, stop: Callable[[int], bool] | None = None) -> CollectStats:
        """Fill a rollout with actions of the weights of `set_weights`; return statistics.

        ``stop`` is asked after every row but the last, with the number of rows written; True cuts
        the rollout short (for stragglers).
        """
        if not self._started:
            self.reset()
        # All draws at once, named by step; the rollout bears the version that acts.
        stats = CollectStats()
        length = len(rollout.obs)
        ends: list[_Ends] = []
        draws = self._draws(length)
        rollout.version = self._version
        rollout.first_index = int(self._indices[0])
        for t in range(length):
            # What the policy sees, and the action it chooses.
            begin = perf_counter()
            self._state[:, self._starts] = 0.0
            if self._spec.state_size and t % rollout.sequence_length == 0:
                rollout.states[t // rollout.sequence_length] = self._state
            rollout.obs[t] = self._obs
            rollout.starts[t] = self._starts
            rollout.active[t] = True if self._active is None else self._active
            if self._truth.shape[1] == rollout.truth.shape[2]:
                rollout.truth[t] = self._truth
            rollout.expert_actions[t] = self._labels
            actions = self._act(rollout, t, draws[t], stats)
            rollout.actions[t] = actions
            acted = perf_counter()
            obs, rewards, terminated, truncated, info = self._env.step(actions)
            stepped = perf_counter()
            # What came of it; where episodes ended, their statistics and last observations.
            rollout.rewards[t] = rewards
            if rollout.outcomes.shape[2]:
                rollout.outcomes[t] = info["outcome"]
            rollout.terminated[t] = terminated
            rollout.truncated[t] = truncated
            rollout.final_values[t] = 0.0
            done = terminated | truncated
            self._count(info, done, stats)
            if done.any():
                self._ended(info, done, stats)
                cut = np.flatnonzero(truncated)
                if len(cut):
                    ends.append(
                        (np.full_like(cut, t), cut, info["final_obs"][cut], self._state[:, cut])
                    )
            # Where the next row begins.
            self._obs[:] = obs
            self._truth = info.get("truth", self._truth)
            self._labels = self._labels_of(info)
            self._starts = self._turn_over(info, done)
            stats.environment_seconds += stepped - acted
            stats.inference_seconds += acted - begin + perf_counter() - stepped
            rollout.steps = t + 1
            if stop is not None and t + 1 < length and stop(t + 1):
                break
        # Values of what would have followed, and the sums.
        begin = perf_counter()
        self._value_ends(rollout, ends)
        self._step += rollout.steps
        stats.steps = float(rollout.samples)
        stats.reward = float(rollout.rewards[: rollout.steps].sum(dtype=np.float64))
        stats.inference_seconds += perf_counter() - begin
        return stats

    def _act(
        self, rollout: Rollout, t: int, draws: NDArray[np.float64], stats: CollectStats
    ) -> NDArray[Any]:
        """Choose actions, int64 ``[N]`` or float32 ``[N, A]``; write log-probabilities, values."""
        network, expert = self._network, self._expert_acts
        head, rollout.values[t], self._state = network.step(self._obs, self._state)
        if self._spec.action_kind == "discrete":
            log_probs = numpy_policy.log_softmax(head)
            chosen = self._labels if expert else numpy_policy.sample_categorical(log_probs, draws)
            rollout.logp[t] = log_probs[self._rows, chosen]
            seen = log_probs if self._active is None else log_probs[self._active]
            stats.entropy += float(numpy_policy.categorical_entropy(seen).sum(dtype=np.float64))
            return chosen
        log_std = network.log_std
        vectors = self._labels if expert else numpy_policy.sample_gaussian(head, log_std, draws)
        rollout.logp[t] = numpy_policy.gaussian_log_prob(head, log_std, vectors)
        count = len(head) if self._active is None else np.count_nonzero(self._active)
        stats.entropy += numpy_policy.gaussian_entropy(log_std) * count
        return vectors

    def _turn_over(self, info: dict[str, Any], done: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Note which agents are active from now on; return where an episode begins."""
        if self._active is None:
            return done
        active: NDArray[np.bool_] = info["active"]
        joined = active & ~self._active
        self._active = active
        self._silent[joined], self._age[joined] = 0, 0
        return np.asarray(done | joined)

    def _count(self, info: dict[str, Any], done: NDArray[np.bool_], stats: CollectStats) -> None:
        at_minimum = info["at_minimum"]
        if self._active is not None:
            at_minimum = at_minimum & self._active & info["active"]
        stats.minimum_window += float(at_minimum.sum())
        if "guarded" in info:
            stats.guarded += float(info["guarded"].sum())
        if "late" in info:
            stats.timed_steps += len(info["late"])
            stats.late_steps += float(info["late"].sum())
        # Where an episode ended, info speaks of the next one.
        self._silent += at_minimum | done
        self._age += 1

    def _value_ends(self, rollout: Rollout, ends: list[_Ends]) -> None:
        """Value what would have followed where episodes were cut off, and the rollout's rest."""
        self._state[:, self._starts] = 0.0
        rollout.last_values[:] = self._network.step(self._obs, self._state)[1]
        if ends:
            rows, columns, obs, state = (
                np.concatenate(parts, axis=1 if parts[0].ndim == 3 else 0)
                for parts in zip(*ends, strict=True)
            )
            rollout.final_values[rows, columns] = self._network.step(obs, state)[1]

    def _ended(self, info: dict[str, Any], done: NDArray[np.bool_], stats: CollectStats) -> None:
        ended = info["_link_episode"]
        episode = info["link_episode"]
        stats.episodes += float(ended.sum())
        stats.episode_return += float(episode["return"][ended].sum())
        stats.utilisation += float(episode["utilisation"][ended].sum())
        stats.queueing_delay += float(episode["queueing_delay"][ended].sum())
        stats.loss += float(episode["loss"][ended].sum())
        silent = (self._silent >= SILENT_SHARE * self._age) & (self._age >= SILENT_STEPS)
        stats.silent_episodes += float(silent[done].sum())
        self._silent[done] = 0
        self._age[done] = 0

    def _draws(self, length: int) -> NDArray[np.float64]:
        """Draw for all rows at once, ``[length, N]`` or ``[length, N, A]``."""
        key = seeding.stream_key(self._seed, "act")
        steps = np.arange(self._step, self._step + length)[:, None]
        if self._spec.action_kind == "discrete":
            return seeding.uniform(key, self._indices[None], steps)
        dimensions = np.arange(self._spec.action_size)
        return seeding.normal(key, self._indices[None, :, None], steps[..., None], dimensions)

    def _labels_of(self, info: dict[str, Any]) -> NDArray[Any]:
        labels = self._spec.no_actions(len(self._rows))
        if "expert_action" in info:
            labels[:] = np.asarray(info["expert_action"]).reshape(labels.shape)
        return labels

    def state_dict(self) -> dict[str, Any]:
        """Return what the next collection starts from; the environment's state is its own."""
        active = {} if self._active is None else {"active": self._active.copy()}
        return active | copy_state(self, _STATE)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        self._active = np.array(state["active"]) if "active" in state else None
        restore_state(self, _STATE, state)
