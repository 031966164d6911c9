"""Deals samples to minibatches, the same ones whoever owns the environments, one rank or many.

Sequences lie in rows of N, one per environment. A unit is one row of the environments whose global
index is ``block`` modulo ``blocks``; units are shuffled and dealt in equal numbers, so minibatches
differ in size by little, and a rank that was cut short leaves out the rows that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from distrlcc import seeding

_UNITS_PER_PART = 16
"""Units in a minibatch, at least, where there are environments enough."""


@dataclass(frozen=True, slots=True)
class Deal:
    """How rows are dealt to minibatches; all but ``first`` is the same on all ranks."""

    parts: int
    """Minibatches."""
    rows: int
    """Rows of a rank that was not cut short."""
    blocks: int
    """Groups that each row's environments are divided into."""
    first: int
    """Global index of this rank's first environment."""

    def minibatches(self, rows: int, count: int, key: np.uint64) -> Iterator[Tensor]:
        """Yield the sequences of each minibatch, int64 ``[B]``; some may be empty.

        Args:
            rows: Rows that this rank has, at most ``self.rows``.
            count: This rank's environments, N.
            key: Of the shuffle; the same on all ranks.
        """
        units = self.rows * self.blocks
        order = np.argsort(seeding.uniform(key, np.arange(units)), kind="stable")
        environments = np.arange(count)
        block_of = (environments + self.first) % self.blocks
        members = [environments[block_of == block] for block in range(self.blocks)]
        bounds = [units * part // self.parts for part in range(self.parts + 1)]
        for i, j in pairwise(bounds):
            chosen = [
                unit // self.blocks * count + members[unit % self.blocks]
                for unit in order[i:j].tolist()
                if unit // self.blocks < rows
            ]
            yield torch.from_numpy(np.concatenate(chosen) if chosen else environments[:0])


def plan_deal(samples: float, minibatch_size: int, rows: int, envs: float, first: int) -> Deal:
    """Plan minibatches of about ``minibatch_size`` samples.

    Args:
        samples: Of all ranks.
        minibatch_size: Samples in a minibatch, over all ranks.
        rows: Rows of sequences on a rank that was not cut short.
        envs: Environments of all ranks.
        first: Global index of this rank's first environment.
    """
    rows = max(rows, 1)
    parts = max(1, -(-int(samples) // minibatch_size))
    blocks = max(1, min(int(envs), -(-_UNITS_PER_PART * parts // rows)))
    return Deal(min(parts, rows * blocks), rows, blocks, first)
