"""A stored data set as torch's map-style `Dataset`: episodes cut into sequences of steps.

An item is a sequence, not a step, so that an LSTM has a past, a read touches one place on the disk
and a sampler's permutation is as many times smaller. A minibatch is fetched in one call; its
sequences come in the order of their places on the disk, since a loss does not mind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from distrlcc.data.reader import StoredData

Indices = NDArray[np.int64]


class SequenceBatch(NamedTuple):
    """``B`` sequences of ``L`` steps."""

    obs: Tensor
    """float32 ``[L, B, D]``, raw."""
    actions: Tensor
    """int64 ``[L, B]`` or float32 ``[L, B, A]``: the expert's."""
    starts: Tensor
    """bool ``[L, B]``: the first step of an episode."""
    valid: Tensor
    """bool ``[L, B]``: the loss counts the step, which is neither burn-in nor padding."""


class SequenceDataset(Dataset[SequenceBatch]):
    """Sequences of some episodes; the steps themselves stay on the disk until asked for."""

    def __init__(self, data: StoredData, episodes: Indices, length: int, burn_in: int = 0) -> None:
        """Cut episodes into sequences; the last of each may be shorter.

        Args:
            data: Where the steps are.
            episodes: Which episodes, rising, ``[E]``.
            length: Steps in a sequence that count.
            burn_in: Steps before them that only warm up a recurrent state.
        """
        self.data, self._length, self._burn_in = data, length, burn_in
        self._episodes = episodes
        steps = data.steps[episodes]
        self._ends: Indices = np.cumsum(-(-steps // length))
        self._discrete = data.manifest.spaces.action_kind == "discrete"
        self.steps = int(steps.sum())
        """Steps of all sequences."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def counts(self, indices: Indices) -> Indices:
        """Return how many steps of each sequence count, ``[B]``."""
        episode, begin = self._places(indices)
        return np.asarray(np.minimum(self.data.steps[episode] - begin, self._length))

    def __getitem__(self, index: int) -> SequenceBatch:
        """Return one sequence as a batch of its own."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int] | Indices) -> SequenceBatch:
        """Return a minibatch, as `torch.utils.data.DataLoader` asks for it."""
        episode, begin = self._places(np.sort(np.asarray(indices, np.int64)))
        data, steps = self.data, self.data.steps[episode]
        age = begin - self._burn_in + np.arange(self._burn_in + self._length)[:, None]
        valid = (age >= begin) & (age < np.minimum(begin + self._length, steps))
        rows = data.first_row[episode] + np.clip(age, 0, steps - 1)
        spaces = data.manifest.spaces
        obs = np.empty((*rows.shape, spaces.observation_size), np.float32)
        shape = rows.shape if self._discrete else (*rows.shape, spaces.action_size)
        actions = np.empty(shape, np.int64 if self._discrete else np.float32)
        shards, firsts = np.unique(data.shard[episode], return_index=True)
        for shard, (i, j) in zip(shards, pairwise([*firsts, len(episode)]), strict=True):
            stored = data.mapped(int(shard))
            obs[:, i:j] = stored.observations[rows[:, i:j]]
            actions[:, i:j] = stored.expert_actions[rows[:, i:j]]
        arrays = (obs, actions, age == 0, valid)
        return SequenceBatch(*(torch.from_numpy(array) for array in arrays))

    def _places(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the sequences' episodes and their first steps in them, ``[B]``."""
        row = np.searchsorted(self._ends, indices, side="right")
        before = np.where(row > 0, self._ends[row - 1], 0)
        return self._episodes[row], (indices - before) * self._length
