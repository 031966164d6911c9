"""Advantages and value targets, with truncation bootstrapped and termination not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distrlcc.learn.rollout import Rollout

Float32 = NDArray[np.float32]


def generalized_advantages(
    rollout: Rollout,
    gamma: float,
    lambda_: float,
    *,
    use_critic: bool = True,
    reward_scale: float = 1.0,
) -> tuple[Float32, Float32]:
    """Compute generalised advantage estimates (https://arxiv.org/abs/1506.02438, equation 16).

    With ``lambda_`` 1 these are plain discounted returns less the value. Where an episode was
    truncated the value of its final observation stands for what would have followed; where it
    terminated nothing follows; at the rollout's end ``last_values`` stands for the rest.

    Args:
        rollout: Its first ``steps`` rows are used.
        gamma: Discount per step.
        lambda_: The estimator's decay.
        use_critic: False takes every value as 0: advantages are then discounted returns.
        reward_scale: Factor of the rewards.

    Returns:
        Advantages and value targets, float32 ``[steps, N]``.
    """
    steps = rollout.steps
    advantages = np.zeros((steps, rollout.count), np.float32)
    zero = np.zeros(rollout.count, np.float32)
    if use_critic:
        values, final_values = rollout.values[:steps], rollout.final_values[:steps]
        next_values = rollout.last_values
    else:
        values = final_values = np.zeros_like(advantages)
        next_values = zero
    done = rollout.terminated[:steps] | rollout.truncated[:steps]
    alive = 1.0 - done.astype(np.float32)
    rewards = rollout.rewards[:steps] * np.float32(reward_scale)
    # Zero where the episode terminated, even if it was truncated in the same step.
    final_values = np.where(
        rollout.truncated[:steps] & ~rollout.terminated[:steps], final_values, 0
    )
    following = zero
    for t in range(steps - 1, -1, -1):
        bootstrap = alive[t] * next_values + final_values[t]
        delta = rewards[t] + np.float32(gamma) * bootstrap - values[t]
        following = delta + np.float32(gamma * lambda_) * alive[t] * following
        advantages[t] = following
        next_values = values[t]
    return advantages, advantages + values
