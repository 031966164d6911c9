"""The same networks in NumPy, one step at a time: acting in training and on real traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from distrlcc.policy.normalizer import normalize
from distrlcc.policy.spec import PolicySpec

Float32 = NDArray[np.float32]


def expected_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every array a policy of this spec consists of."""
    shapes: dict[str, tuple[int, ...]] = {}
    width = spec.observation_size
    for index, size in enumerate(spec.dense):
        shapes[f"trunk.{index}.weight"] = (size, width)
        shapes[f"trunk.{index}.bias"] = (size,)
        width = size
    if spec.state_size:
        size = spec.state_size
        shapes["lstm.weight_ih"] = (4 * size, width)
        shapes["lstm.weight_hh"] = (4 * size, size)
        shapes["lstm.bias_ih"] = shapes["lstm.bias_hh"] = (4 * size,)
        width = size
    shapes["policy_head.weight"] = (spec.action_size, width)
    shapes["policy_head.bias"] = (spec.action_size,)
    shapes["value_head.weight"] = (1, width)
    shapes["value_head.bias"] = (1,)
    if spec.action_kind == "continuous":
        shapes["log_std"] = (spec.action_size,)
    shapes["normalizer.mean"] = shapes["normalizer.std"] = (spec.observation_size,)
    return shapes


def _relu(values: Float32) -> Float32:
    return np.maximum(values, np.float32(0.0), out=values)


def _tanh(values: Float32) -> Float32:
    return np.tanh(values, out=values)


class NumpyNetwork:
    """A policy's arrays, ready to be run: raw observations in, head and value out."""

    def __init__(self, spec: PolicySpec, arrays: Mapping[str, Float32]) -> None:
        """Take the arrays named and shaped as :func:`expected_shapes` says."""
        self.spec = spec
        self._mean, self._std = arrays["normalizer.mean"], arrays["normalizer.std"]
        self._dense = [
            (arrays[f"trunk.{i}.weight"], arrays[f"trunk.{i}.bias"][:, None])
            for i in range(len(spec.dense))
        ]
        self._activation: Callable[[Float32], Float32] = (
            _relu if spec.activation == "relu" else _tanh
        )
        if spec.state_size:
            self._weight_ih, self._weight_hh = arrays["lstm.weight_ih"], arrays["lstm.weight_hh"]
            self._bias = (arrays["lstm.bias_ih"] + arrays["lstm.bias_hh"])[:, None]
            # A sigmoid is (1 + tanh(x / 2)) / 2, which cannot overflow: one tanh for all gates.
            self._gate_scale = np.full((4 * spec.state_size, 1), 0.5, np.float32)
            self._gate_scale[2 * spec.state_size : 3 * spec.state_size] = 1.0
        # One matrix for both heads: one small product instead of two.
        self._heads = np.concatenate([arrays["policy_head.weight"], arrays["value_head.weight"]])
        bias = np.concatenate([arrays["policy_head.bias"], arrays["value_head.bias"]])
        self._heads_bias = bias[:, None]
        self.log_std: Float32 = arrays.get("log_std", np.zeros(0, np.float32))

    def initial_state(self, count: int) -> Float32:
        """Return the state ``[2, count, H]`` at an episode's start; H is 0 for an MLP."""
        return np.zeros((2, count, self.spec.state_size), np.float32)

    def step(self, obs: Float32, state: Float32) -> tuple[Float32, Float32, Float32]:
        """Run one step; nothing passed in is changed.

        Args:
            obs: Raw observations ``[N, D]``.
            state: ``[2, N, H]``, already zero where an episode starts.

        Returns:
            Logits or means ``[N, A]``, values ``[N]``, and the state after the step ``[2, N, H]``.
        """
        # Features come first inside, [D, N], as in ActorCritic: softmax then runs along memory.
        features = normalize(obs, self._mean, self._std).T
        for weight, bias in self._dense:
            features = weight @ features
            features += bias
            features = self._activation(features)
        if self.spec.state_size:
            state = self._lstm(features, state)
            features = state[0].T
        heads = self._heads @ features
        heads += self._heads_bias
        return heads[:-1].T, heads[-1], state

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
