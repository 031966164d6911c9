"""Action distributions in torch, with gradients: what losses need, and no more."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from distrlcc.policy.sampling import LOG_STD_RANGE

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Categorical(NamedTuple):
    """A distribution over ``A`` actions."""

    log_probs: Tensor
    """``[..., A]``, normalised."""

    @classmethod
    def of(cls, logits: Tensor) -> Categorical:
        """Build the distribution from logits ``[..., A]``."""
        # Along the first axis, as ActorCritic lays its logits out.
        return cls(torch.log_softmax(logits.movedim(-1, 0), dim=0).movedim(0, -1))

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return log-probabilities ``[...]`` of int64 actions ``[...]``."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]``, nats."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class Gaussian(NamedTuple):
    """A diagonal Gaussian over action vectors of length ``A``; nothing squashes it."""

    mean: Tensor
    """``[..., A]``."""
    log_std: Tensor
    """``[A]``, within ``LOG_STD_RANGE``."""

    @classmethod
    def of(cls, mean: Tensor, log_std: Tensor) -> Gaussian:
        """Build the distribution; log_std ``[A]`` is clipped."""
        return cls(mean, log_std.clamp(*LOG_STD_RANGE))

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return log-densities ``[...]`` of actions ``[..., A]``."""
        deviation = (actions - self.mean) * (-self.log_std).exp()
        return (-0.5 * deviation.square() - self.log_std - _HALF_LOG_TAU).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy ``[...]``, nats; the same everywhere."""
        entropy = (self.log_std + 0.5 + _HALF_LOG_TAU).sum()
        return entropy.expand(self.mean.shape[:-1])


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old ‖ new) from actions the old policy took, without bias and never below 0.

    Needs only the actions' log-probabilities, so that no old distribution has to be kept or sent.

    Args:
        log_ratio: log new - log old probability of each action, ``[...]``.

    Returns:
        ``(r - 1) - log r``, the k3 of http://joschu.net/blog/kl-approx.html, ``[...]``.
    """
    return log_ratio.expm1() - log_ratio
