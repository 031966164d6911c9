"""A policy in NumPy, one step at a time: acting in training and on real traffic.

There is no random state: uniforms and normals follow from what names them, so that the same draw
gives the same action on any machine. Neither torch nor Gymnasium is needed.
"""

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import ConfigError
from distrlcc.plugins import shaped, short
from distrlcc.policy.normalizer import Float32, Float64, normalize
from distrlcc.policy.policy_file import PolicyFile, load_policy
from distrlcc.policy.spec import BODY, PolicySpec
from distrlcc.seeding import normal, uniform

LOG_STD_RANGE = (-5.0, 2.0)  # bounds of a Gaussian's log standard deviation, here and in torch

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


def log_softmax(logits: Float32) -> Float32:
    """Return log-probabilities ``[N, A]`` of logits ``[N, A]``."""
    shifted: Float32 = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def sample_categorical(log_probs: Float32, uniform: Float64) -> NDArray[np.int64]:
    """Return actions ``[N]`` by the inverse CDF at uniforms ``[N]`` in [0, 1)."""
    cdf = np.cumsum(np.exp(log_probs), axis=-1, dtype=np.float64)
    # Scaling by the total leaves no gap above the last action when rounding makes it less than 1.
    below = cdf[:, :-1] <= (uniform * cdf[:, -1])[:, None]
    actions: NDArray[np.int64] = below.sum(axis=-1, dtype=np.int64)
    return actions


def categorical_entropy(log_probs: Float32) -> Float32:
    """Return the entropy ``[N]``, nats."""
    entropy: Float32 = -np.einsum("na,na->n", np.exp(log_probs), log_probs)
    return entropy


def sample_gaussian(mean: Float32, log_std: Float32, normal: Float64) -> Float32:
    """Return actions ``[N, A]`` = mean + std · normal, all ``[N, A]`` but log_std ``[A]``."""
    std: Float32 = np.exp(np.clip(log_std, *LOG_STD_RANGE))
    return mean + std * normal.astype(np.float32)


def gaussian_log_prob(mean: Float32, log_std: Float32, actions: Float32) -> Float32:
    """Return log-densities ``[N]`` of actions ``[N, A]``."""
    clipped = np.clip(log_std, *LOG_STD_RANGE)
    deviation = (actions - mean) / np.exp(clipped)
    terms = -0.5 * np.square(deviation) - clipped - np.float32(HALF_LOG_TAU)
    log_prob: Float32 = terms.sum(axis=-1, dtype=np.float32)
    return log_prob


def gaussian_entropy(log_std: Float32) -> float:
    """Return the entropy of a diagonal Gaussian with log standard deviation ``[A]``, nats."""
    return float((np.clip(log_std, *LOG_STD_RANGE) + 0.5 + HALF_LOG_TAU).sum())


class NumpyNetwork:
    """A policy's arrays, ready to be run: raw observations in, head and value out."""

    def __init__(self, spec: PolicySpec, arrays: Mapping[str, Float32]) -> None:
        self.spec = spec
        self._mean, self._std = arrays["normalizer.mean"], arrays["normalizer.std"]
        self.log_std: Float32 = arrays.get("log_std", np.zeros(0, np.float32))
        self._user = spec.network
        if self._user is not None:
            self._arrays = {name.removeprefix(BODY): array for name, array in arrays.items()}
            return

        def layer(name: str) -> tuple[Float32, Float32]:
            return arrays[f"{name}.weight"], arrays[f"{name}.bias"][:, None]

        self._dense = [layer(f"trunk.{i}") for i in range(len(spec.dense))]
        self._post = [layer("post")] if spec.post_hidden else []
        self._relu = spec.activation == "relu"
        if spec.kind == "mingru":
            # As below, of z's inputs: one tanh for both gates.
            scale = np.repeat(np.array([[0.5], [1.0]], np.float32), spec.state_size, axis=0)
            self._gates: Float32 = arrays["mingru.weight"] * scale
            self._bias: Float32 = arrays["mingru.bias"][:, None] * scale
        elif spec.kind == "lstm":
            self._weight_ih, self._weight_hh = arrays["lstm.weight_ih"], arrays["lstm.weight_hh"]
            self._bias = (arrays["lstm.bias_ih"] + arrays["lstm.bias_hh"])[:, None]
            # A sigmoid is (1 + tanh(x / 2)) / 2, which cannot overflow: one tanh for all gates.
            self._gate_scale = np.full((4 * spec.state_size, 1), 0.5, np.float32)
            self._gate_scale[2 * spec.state_size : 3 * spec.state_size] = 1.0
        # One matrix for both heads: one small product instead of two.
        self._heads = np.concatenate([arrays["policy_head.weight"], arrays["value_head.weight"]])
        bias = np.concatenate([arrays["policy_head.bias"], arrays["value_head.bias"]])
        self._heads_bias = bias[:, None]

    def initial_state(self, count: int) -> Float32:
        """Return the state ``[P, count, H]`` at an episode's start; see `PolicySpec`."""
        return np.zeros(self.spec.state_shape(count), np.float32)

    def step(self, obs: Float32, state: Float32) -> tuple[Float32, Float32, Float32]:
        """Run one step of raw observations ``[N, D]``; nothing passed in is changed.

        The state ``[P, N, H]`` is zero already where an episode starts. Returns logits or means
        ``[N, A]``, values ``[N]``, and the state after the step ``[P, N, H]``.
        """
        normalised = normalize(obs, self._mean, self._std)
        if self._user is not None:
            head, values, after = self._user.step(self._arrays, normalised, state)
            shaped("network", self.spec.kind, head, len(obs), self.spec.action_size)
            shaped("network", self.spec.kind, values, len(obs))
            return head, values, shaped("network", self.spec.kind, after, *state.shape)
        # Features come first inside, [D, N], as in ActorCritic: softmax then runs along memory.
        features = self._through(self._dense, normalised.T)
        if self.spec.state_size:
            recur = self._lstm if self.spec.kind == "lstm" else self._mingru
            state = recur(features, state)
            seen, features = features, state[0].T
            if self._post:
                features = self._through(self._post, np.concatenate([seen, features]))
        heads = self._heads @ features
        heads += self._heads_bias
        return heads[:-1].T, heads[-1], state

    def _through(self, layers: Sequence[tuple[Float32, Float32]], features: Float32) -> Float32:
        for weight, bias in layers:
            features = weight @ features
            features += bias
            if self._relu:
                np.maximum(features, np.float32(0.0), out=features)
            else:
                np.tanh(features, out=features)
        return features

    def _lstm(self, inputs: Float32, state: Float32) -> Float32:
        gates = self._weight_ih @ inputs + self._weight_hh @ state[0].T + self._bias
        gates *= self._gate_scale
        np.tanh(gates, out=gates)
        size = self.spec.state_size
        g = gates[2 * size : 3 * size].copy()  # torch's order: i, f, g, o
        gates += np.float32(1.0)
        gates *= np.float32(0.5)
        i, f, o = gates[:size], gates[size : 2 * size], gates[3 * size :]
        cell = f * state[1].T + i * g
        after = np.empty_like(state)
        after[0] = (o * np.tanh(cell)).T
        after[1] = cell.T
        return after

    def _mingru(self, inputs: Float32, state: Float32) -> Float32:
        gates = self._gates @ inputs
        gates += self._bias
        np.tanh(gates, out=gates)
        z, candidate = gates[: self.spec.state_size], gates[self.spec.state_size :]
        z += np.float32(1.0)
        z *= np.float32(0.5)
        before = state[0].T
        candidate -= before
        candidate *= z
        candidate += before
        after: Float32 = candidate.T[None]
        return after


class NumpyPolicy(NumpyNetwork):
    """Acts for N senders at once."""

    def __init__(self, policy: PolicyFile) -> None:
        super().__init__(policy.spec, policy.arrays)
        self.acting, self.notes, self.arrays = policy.acting, policy.notes, policy.arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "NumpyPolicy":
        """Read a policy file; see :func:`load_policy`."""
        return cls(load_policy(path))

    def act(
        self, obs: Float32, state: Float32, draws: Float64 | None = None
    ) -> tuple[NDArray[np.int64] | Float32, Float32]:
        """Choose actions for raw observations ``[N, D]`` and states ``[P, N, H]``.

        Where :attr:`acting` is ``sample`` it needs draws, else raises ValueError: uniforms in [0,
        1) ``[N]`` for discrete actions, standard normals ``[N, A]`` for continuous ones. Returns
        actions, int64 ``[N]`` or float32 ``[N, A]``, and the next state.
        """
        head, _, state = self.step(obs, state)
        if not np.isfinite(head).all():  # any action would be as good
            names = f"observation {short(self.spec.observation)} or network {short(self.spec.kind)}"
            raise ConfigError(f"{names} gave values that are not finite; mend its code")
        discrete = self.spec.action_kind == "discrete"
        if self.acting == "argmax":
            return (head.argmax(axis=-1) if discrete else head), state
        if draws is None:
            raise ValueError("this policy acts by sampling: pass draws")
        if discrete:
            return sample_categorical(log_softmax(head), draws), state
        return sample_gaussian(head, self.log_std, draws), state


class ActingPolicy:
    """A policy acting for N senders from their start: recurrent state and draws."""

    def __init__(self, policy: NumpyPolicy, count: int, key: np.uint64) -> None:
        """Start ``count`` senders; those of equal keys act equally."""
        self._policy, self._rows = policy, np.arange(count)
        self._state = policy.initial_state(count)
        self._key, self._step = key, 0

    def reset(self, senders: NDArray[np.bool_]) -> None:
        """Let some senders, ``[N]``, start anew: without a past."""
        self._state = np.where(senders[:, None], np.float32(0.0), self._state)

    def act(self, observation: Float32) -> NDArray[np.int64] | Float32:
        """Return the actions for ``[N, D]`` observations."""
        draws, spec = None, self._policy.spec
        if self._policy.acting == "sample" and spec.action_kind == "discrete":
            draws = uniform(self._key, self._rows, self._step)
        elif self._policy.acting == "sample":
            columns = np.arange(spec.action_size)[None]
            draws = normal(self._key, self._rows[:, None], self._step, columns)
        actions, self._state = self._policy.act(observation, self._state, draws)
        self._step += 1
        return actions
