"""Advantages and value targets, with truncation bootstrapped and termination not.

Left out on purpose: the learning critic's values of the observations that ended episodes and the
rollout; those of the critic that acted stand for them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrlcc.learn.rollout import Rollout

Float32 = NDArray[np.float32]

_ROUNDING = 1e-4  # between a policy's two implementations, of log-probabilities


@dataclass(frozen=True, slots=True)
class Returns:
    """Advantages and targets of a rollout's actions, under the policy that learns."""

    advantages: Float32  # [steps, N]
    targets: Float32  # [steps, N], of the value
    residuals: Float32  # [steps, N], targets less the critic's values
    rho: Float32  # [steps, N], clipped ratios of the policies' probabilities
    clipped: NDArray[np.bool_]  # [steps, N], where the ratio was above its bound, beyond rounding


def vtrace(
    rollout: Rollout,
    logp: Float32,
    values: Float32,
    gamma: float,
    lambda_: float,
    *,
    rho_bound: float = 1.0,
    c_bound: float = 1.0,
    use_critic: bool = True,
    reward_scale: float = 1.0,
) -> Returns:
    """Correct for what the policy learned since it acted (https://arxiv.org/abs/1802.01561).

    Targets are the paper's equation 1 in the recursive form of its remark 1, with ``lambda_`` in
    the traces as in remark 2. Advantages are section 4.2's ``rho_t (r_t + gamma v_{t+1} - V_t)``,
    with ``lambda_`` between ``V_{t+1}`` and ``v_{t+1}``. With 1 they are the paper's. If the policy
    that acted is the one that learns, they are generalised advantage estimates
    (https://arxiv.org/abs/1506.02438, equation 16).

    After a truncated episode the acting critic's value of its final observation stands for what
    would have followed; after a terminated one, nothing does. At the rollout's end ``last_values``
    stand for the rest.

    Args:
        rollout: Its first ``steps`` rows are used; ``logp`` in it is the acting policy's.
        logp: Log-probabilities of the actions under the policy that learns, ``[steps, N]``.
        values: Its critic's values of the observations, ``[steps, N]``.
        gamma: Discount per step.
        lambda_: Decay of the traces.
        rho_bound: Bound of the ratio that weighs a step, above 0; it sets which policy's value the
            targets aim at.
        c_bound: Bound of the ratio that passes later steps on, above 0; it sets how fast.
        use_critic: False takes every value as 0: advantages are then discounted returns.
        reward_scale: Factor of the rewards.
    """
    steps = rollout.steps
    shape = (steps, rollout.count)
    zero = np.zeros(rollout.count, np.float32)
    if use_critic:
        final_values, next_values = rollout.final_values[:steps], rollout.last_values
    else:
        values = final_values = np.zeros(shape, np.float32)
        next_values = zero
    terminated, truncated = rollout.terminated[:steps], rollout.truncated[:steps]
    alive = (~(terminated | truncated)).astype(np.float32)
    rewards = rollout.rewards[:steps] * np.float32(reward_scale)
    # Zero where the episode terminated, even if it was truncated in the same step.
    final_values = np.where(truncated & ~terminated, final_values, 0)
    log_ratio = logp - rollout.logp[:steps]
    rho = _clipped_exp(log_ratio, rho_bound)
    c = _clipped_exp(log_ratio, c_bound)
    # From the last step to the first: what follows a step is what the steps after it passed on.
    advantages = np.zeros(shape, np.float32)
    residuals = np.zeros(shape, np.float32)  # v_t - V_t
    following = zero
    for t in range(steps - 1, -1, -1):
        bootstrap = alive[t] * next_values + final_values[t]
        error = rewards[t] + np.float32(gamma) * bootstrap - values[t]
        following = np.float32(gamma * lambda_) * alive[t] * following
        advantages[t] = rho[t] * (error + following)
        following = residuals[t] = rho[t] * error + c[t] * following
        next_values = values[t]
    clipped = log_ratio > math.log(rho_bound) + _ROUNDING
    return Returns(advantages, residuals + values, residuals, rho, clipped)


def _clipped_exp(log_ratio: Float32, bound: float) -> Float32:
    """Return ``min(bound, exp(log_ratio))``; nothing overflows."""
    return np.asarray(np.exp(np.minimum(log_ratio, np.float32(math.log(bound)))), np.float32)
