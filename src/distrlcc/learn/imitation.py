"""Behavioural cloning: fits a policy to the actions that an expert took, on any number of ranks.

A stored data set is torch's map-style `Dataset` of sequences, not steps. So an LSTM has a past, a
read touches one place on the disk, and a sampler's permutation is smaller. One call fetches a
minibatch, whose sequences come in the order of their places on the disk, since a loss does not
mind.

Each rank reads its share of a minibatch. Ranks' gradients are weighted by their numbers of steps,
so that the mean is the whole minibatch's, however uneven the shares are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

from distrlcc.data.reader import StoredData
from distrlcc.errors import DatasetError
from distrlcc.learn.config import ImitationConfig, scheduled
from distrlcc.learn.learner import InterruptedUpdateError
from distrlcc.learn.minibatches import Batch
from distrlcc.learn.model import Learner
from distrlcc.policy.spec import PolicySpec

_STOP_EVERY = 16  # minibatches between two looks at whether to stop


Indices = NDArray[np.int64]


class SequenceDataset(Dataset[Batch]):
    """Sequences of some episodes; the steps themselves stay on the disk until asked for."""

    def __init__(self, data: StoredData, episodes: Indices, length: int, burn_in: int = 0) -> None:
        """Cut rising episodes ``[E]`` into sequences of ``length``, each with steps of burn-in."""
        self.data, self._length, self._burn_in = data, length, burn_in
        self._episodes = episodes
        steps = data.steps[episodes]
        self._ends: Indices = np.cumsum(-(-steps // length))
        self._discrete = data.manifest.spaces.action_kind == "discrete"
        self.steps = int(steps.sum())  # steps of all sequences

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def counts(self, indices: Indices) -> Indices:
        """Return how many steps of each sequence count, ``[B]``."""
        episode, begin = self._places(indices)
        return np.asarray(np.minimum(self.data.steps[episode] - begin, self._length))

    def __getitems__(self, indices: Sequence[int] | Indices) -> Batch:
        """Return a minibatch, for a `torch.utils.data.DataLoader`; raw, with empty states."""
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
        seen, acted, starts, counts = map(torch.from_numpy, (obs, actions, age == 0, valid))
        no_columns, no_states = torch.zeros(0, *rows.shape), torch.zeros(0, rows.shape[1], 0)
        return Batch(seen, acted, no_columns, starts, no_states, counts)

    def _places(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the sequences' episodes and their first steps in them, ``[B]``."""
        row = np.searchsorted(self._ends, indices, side="right")
        before = np.where(row > 0, self._ends[row - 1], 0)
        return self._episodes[row], (indices - before) * self._length


@dataclass(frozen=True)
class Epoch:
    """One pass over a data set, which is what cloning learns from in an update."""

    number: int  # counts from 0
    training: SequenceDataset  # the same on every rank
    parts: list[Indices]  # this rank's sequences of each minibatch; as many minibatches everywhere
    validation: SequenceDataset
    validation_parts: list[Indices]
    own_episodes: Indices  # the training episodes that this rank checks before the first epoch
    stop: Callable[[int], bool] = lambda steps: False
    """Asked now and then, with the steps done, on all ranks at once; True breaks the epoch off."""


def flaw(spec: PolicySpec, observations: NDArray[np.float32], actions: NDArray[Any]) -> str:
    """Return why steps of an expert cannot be learned from, if so."""
    if not np.isfinite(observations).all():
        return "an observation is not finite"
    if spec.action_kind == "discrete":
        fine = bool(((actions >= 0) & (actions < spec.action_size)).all())
    else:
        fine = bool(np.isfinite(actions).all())
    return "" if fine else "an action is not of the action space"


class Cloning(Learner):
    """Behavioural cloning; its batches are epochs."""

    config: ImitationConfig

    def update(self, epoch: Epoch) -> dict[str, float]:
        """Make one pass over a data set, measure on the validation episodes; means over ranks."""
        unseen = self.config.normalize_observations and not self.normalizer.count
        if self.version == 0 or unseen:  # where the first epoch was refused
            self._examine(epoch)
        dataset = epoch.training
        counts = [float(dataset.counts(part).sum()) for part in epoch.parts]
        totals = self.reducer.sum(np.array(counts))
        lr = scheduled(self.config.lr_schedule, epoch.number, self.config.lr)
        sums, norms, done = torch.zeros(2, dtype=torch.float64), torch.zeros(()), 0.0
        batches = zip(map(dataset.__getitems__, epoch.parts), counts, totals, strict=True)
        for number, (batch, own, total) in enumerate(batches):
            if number % _STOP_EVERY == 0 and epoch.stop(int(done)):
                raise InterruptedUpdateError
            loss: Tensor | None = None
            if own:  # a last minibatch may be empty on some ranks
                objective, *measured = self._losses(batch)
                loss = objective / own
                sums += torch.stack(measured).detach()
            norms += self.optimizer.step(loss, own, lr, self.config.grad_clip)
            done += total
        metrics = self._means("imitation", sums, float(totals.sum()))
        metrics |= {"gradient_norm": float(norms) / len(epoch.parts), "lr": lr}
        if len(epoch.validation):
            metrics |= self._validate(epoch)
        self.version += 1
        return metrics

    def _examine(self, epoch: Epoch) -> None:
        """Read all training episodes once: check their values and take their moments."""
        data, problem = epoch.training.data, ""
        moments = np.zeros(3 * self.spec.observation_size)
        for index in epoch.own_episodes:
            steps = data.episode(int(index))
            problem = flaw(self.spec, steps.observations, steps.expert_actions)
            if problem:
                problem = f"{data.folder}, episode {index}: {problem}; copy the data set again"
                break
            moments += self.moments(steps.observations)
        # All ranks raise, or none would know that another has left.
        if self.reducer.sum(np.array([float(bool(problem))]))[0]:
            raise DatasetError(problem or f"{data.folder}: another process found it damaged")
        self.absorb(self.reducer.sum(moments))

    def _validate(self, epoch: Epoch) -> dict[str, float]:
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for batch in map(epoch.validation.__getitems__, epoch.validation_parts):
                sums += torch.stack(self._losses(batch)[1:])
        return self._means("validation", sums, float(epoch.validation.steps))

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums over the steps that count: what is minimised, the loss, and the hits."""
        batch.obs = torch.from_numpy(self.normalize(batch.obs.numpy()))
        batch.states = self.network.initial_state(batch.count)
        loss, spread, hits = self.imitate(batch)
        assert batch.valid is not None
        objective, loss, hits = ((v * batch.valid).sum() for v in (loss - spread, loss, hits))
        return objective, loss, hits

    def _means(self, what: str, sums: Tensor, count: float) -> dict[str, float]:
        loss, hits = (self.reducer.sum(sums.numpy()) / max(count, 1.0)).tolist()
        means = {f"{what}_loss": loss}
        return means | {f"{what}_accuracy": hits} if self.spec.action_kind == "discrete" else means


def share_of_minibatches(
    dataset: SequenceDataset,
    sequences: int,
    rank: int = 0,
    size: int = 1,
    seed: int = 0,
    epoch: int | None = None,
) -> list[Indices]:
    """Return a rank's sequences of each minibatch; as many minibatches on every rank.

    A minibatch has ``sequences`` over all ``size`` ranks. The seed and the epoch, which counts from
    0, decide the order; without an epoch it is the data set's.
    """
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, size, rank, shuffle=epoch is not None, seed=seed
    )
    sampler.set_epoch(epoch or 0)
    order = np.fromiter(sampler, np.int64, len(sampler))
    own, part = len(range(rank, len(dataset), size)), max(1, sequences // size)
    # What the sampler repeats to give all ranks equally much is left out: a last minibatch may be
    # smaller on some ranks, and even empty.
    return [order[i : min(i + part, own)] for i in range(0, len(order), part)]
