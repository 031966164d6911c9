"""A critic that knows the link: what it expects beyond what the policy's own critic says.

An asymmetric actor-critic (https://arxiv.org/abs/1710.06542): it is there in training alone, so the
policy that acts, and its file, are the same with it and without.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDTH = 64


class PrivilegedCritic(nn.Module):
    """Two dense layers over a normalised observation, the policy's value of it, and the truth."""

    def __init__(self, observation_size: int, truth_size: int, seed: int) -> None:
        """Build it with weights drawn from ``seed`` alone; at first it adds nothing."""
        super().__init__()
        first = nn.Linear(observation_size + 1 + truth_size, _WIDTH)
        second, head = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, 1)
        generator = torch.Generator().manual_seed(seed)
        for layer in (first, second):
            nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), head)

    def forward(self, obs: Tensor, values: Tensor, truth: Tensor) -> Tensor:
        """Return what is to be added to values ``[...]``, of ``[..., D]`` and ``[..., P]``."""
        inputs = torch.cat([obs, values.unsqueeze(-1), truth], -1)
        added: Tensor = self.layers(inputs).squeeze(-1)
        return added
