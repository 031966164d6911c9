"""Acting in NumPy: actions and log-probabilities from a network's outputs and given draws.

Nothing here keeps random state: the caller passes uniforms or normals, so that the same draw gives
the same action on any machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

LOG_STD_RANGE = (-5.0, 2.0)
"""A Gaussian's log standard deviation is clipped to this range, in NumPy and in torch."""

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


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


def gaussian_std(log_std: Float32) -> Float32:
    """Return the standard deviation ``[A]`` of a log standard deviation ``[A]``."""
    return np.exp(np.clip(log_std, *LOG_STD_RANGE))


def sample_gaussian(mean: Float32, log_std: Float32, normal: Float64) -> Float32:
    """Return actions ``[N, A]`` = mean + std · normal, all ``[N, A]`` but log_std ``[A]``."""
    return mean + gaussian_std(log_std) * normal.astype(np.float32)


def gaussian_log_prob(mean: Float32, log_std: Float32, actions: Float32) -> Float32:
    """Return log-densities ``[N]`` of actions ``[N, A]``."""
    clipped = np.clip(log_std, *LOG_STD_RANGE)
    deviation = (actions - mean) / np.exp(clipped)
    terms = -0.5 * np.square(deviation) - clipped - np.float32(_HALF_LOG_TAU)
    log_prob: Float32 = terms.sum(axis=-1, dtype=np.float32)
    return log_prob


def gaussian_entropy(log_std: Float32) -> float:
    """Return the entropy of a diagonal Gaussian with log standard deviation ``[A]``, nats."""
    return float((np.clip(log_std, *LOG_STD_RANGE) + 0.5 + _HALF_LOG_TAU).sum())
