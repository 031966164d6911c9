"""Tells an expert's steps from a policy's: D, the probability that a step is the expert's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Discriminator(nn.Module):
    """A network whose output is D's logit."""

    def __init__(self, size: int, hidden: Sequence[int], seed: int) -> None:
        """Build it from ``seed``.

        Args:
            size: Features of a step, F.
            hidden: Layer widths.
            seed: Of the weights.
        """
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((size, *hidden, 1)):
            linear = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(linear.weight, gain=2.0**0.5, generator=generator)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.Tanh()]
        self._layers = nn.Sequential(*layers[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``[R]`` of steps ``[R, F]``."""
        logits: Tensor = self._layers(features).squeeze(-1)
        return logits


def classification_loss(expert: Tensor, policy: Tensor) -> Tensor:
    """Return the mean of -log D(expert) - log(1 - D(policy)), of logits ``[R]``.

    GAIL's objective (https://arxiv.org/abs/1606.03476, equation 15), with D for the expert.
    """
    return functional.softplus(-expert).mean() + functional.softplus(policy).mean()


def gradient_penalty(network: nn.Module, expert: Tensor, policy: Tensor, mix: Tensor) -> Tensor:
    """Return the mean squared deviation of the slope from 1 (https://arxiv.org/abs/1704.00028).

    Args:
        network: The discriminator.
        expert: ``[R, F]``.
        policy: ``[R, F]``.
        mix: Where between each two the slope is taken, in [0, 1], ``[R]``.
    """
    between = torch.lerp(policy, expert, mix[:, None]).requires_grad_(True)
    (slope,) = torch.autograd.grad(network(between).sum(), between, create_graph=True)
    penalty: Tensor = (slope.norm(dim=1) - 1.0).square().mean()
    return penalty


def divergence(expert: Tensor, policy: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence that the discriminator proves at least, nats.

    0 where it cannot tell them apart, log 2 where it always can (or below 0 where it is worse than
    a guess). Logits ``[R]``.
    """
    proved: Tensor = torch.tensor(2.0).log() - 0.5 * classification_loss(expert, policy)
    return proved
