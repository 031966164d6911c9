"""Behavioural cloning: fits a policy to the actions that an expert took, on any number of ranks.

Each rank reads its share of a minibatch; the loss is scaled so that the ranks' mean gradient is
that of the whole minibatch, however uneven the shares are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from distrlcc.data.reader import StoredData
from distrlcc.errors import DatasetError
from distrlcc.learn.config import scheduled
from distrlcc.learn.data_parallel import DataParallel
from distrlcc.learn.flat_adam import Adam
from distrlcc.learn.imitation_config import ImitationConfig
from distrlcc.learn.learner import Weights
from distrlcc.learn.sequences import Indices, SequenceBatch, SequenceDataset
from distrlcc.policy.network import ActorCritic, Categorical, Gaussian
from distrlcc.policy.normalizer import Normalizer, normalize
from distrlcc.policy.spec import PolicySpec

_STOP_EVERY = 16
"""Minibatches between two looks at whether to stop."""


class Imitator:
    """The network under training, Adam, and the observations' moments; the same on every rank."""

    def __init__(
        self, config: ImitationConfig, spec: PolicySpec, seed: int, group: DataParallel
    ) -> None:
        """Build the network from ``seed``."""
        self.config, self.spec, self._seed, self._group = config, spec, seed, group
        self.network = ActorCritic(spec, seed)
        self.normalizer = Normalizer(spec.observation_size)
        self._wrapped = group.wrap(self.network)
        self._optimizer = Adam(self.network.parameters(), weight_decay=config.l2, fused=True)

    def examine(self, data: StoredData, episodes: Indices) -> None:
        """Read all training episodes once: check their values and take their moments.

        Raises:
            DatasetError: Observations are not finite, or actions are not of the action space.
        """
        group, local = self._group, Normalizer(self.spec.observation_size)
        problem = ""
        for index in episodes[_share(len(episodes), group)]:
            steps = data.episode(int(index))
            problem = problem or self._problem(steps.observations, steps.expert_actions)
            if problem:
                problem = f"{data.folder}, episode {index}: {problem}; copy the data set again"
                break
            local.update(steps.observations)
        # All ranks raise, or none would know that another has left.
        if group.sum(np.array([float(bool(problem))]))[0]:
            raise DatasetError(problem or f"{data.folder}: another process found it damaged")
        if self.config.normalize_observations:
            counts, firsts = group.sum(
                np.stack([0 * local.mean + local.count, local.count * local.mean])
            )
            mean = firsts / counts
            shifted = local.m2 + local.count * np.square(local.mean - mean)
            state = {"count": counts[0], "mean": mean, "m2": group.sum(shifted)}
            self.normalizer.load_state_dict(state)

    def _problem(self, observations: NDArray[np.float32], actions: NDArray[Any]) -> str:
        if not np.isfinite(observations).all():
            return "an observation is not finite"
        if self.spec.action_kind == "discrete":
            fine = bool(((actions >= 0) & (actions < self.spec.action_size)).all())
        else:
            fine = bool(np.isfinite(actions).all())
        return "" if fine else "an action is not of the action space"

    def train(
        self, dataset: SequenceDataset, epoch: int, stopped: Callable[[int], bool]
    ) -> dict[str, float] | None:
        """Make one pass over a data set.

        Args:
            dataset: The same on every rank.
            epoch: Counts from 0; decides the order.
            stopped: Asked now and then, with the steps done, on all ranks at once; True breaks off.

        Returns:
            Means over all ranks; None if broken off.
        """
        sampler = self._group.sampler(dataset, shuffle=True, seed=self._seed)
        sampler.set_epoch(epoch)
        parts = self._parts(dataset, sampler, self.config.sequence_length)
        totals = self._group.sum(np.array([float(dataset.counts(p).sum()) for p in parts]))
        lr = scheduled(self.config.lr_schedule, epoch, self.config.lr)
        sums, norms, done = torch.zeros(2, dtype=torch.float64), torch.zeros(()), 0.0
        for number, (batch, total) in enumerate(zip(_loader(dataset, parts), totals, strict=True)):
            if number % _STOP_EVERY == 0 and stopped(int(done)):
                return None
            objective, loss, hits = self._losses(self._wrapped, batch)
            norms += self._descend(objective * (self._group.size / total), lr)
            sums += torch.stack([loss, hits]).detach()
            done += total
        metrics = self._means(sums, float(totals.sum()))
        return {
            **{f"imitation_{key}": value for key, value in metrics.items()},
            "gradient_norm": float(norms) / len(parts),
            "lr": lr,
        }

    def validate(self, dataset: SequenceDataset, length: int) -> dict[str, float]:
        """Measure without learning, over all ranks.

        Args:
            dataset: The same on every rank.
            length: Steps of its sequences, for the size of a minibatch.
        """
        sampler = self._group.sampler(dataset, shuffle=False, seed=0)
        parts = self._parts(dataset, sampler, length)
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for batch in _loader(dataset, parts):
                _, loss, hits = self._losses(self.network, batch)
                sums += torch.stack([loss, hits])
        metrics = self._means(sums, float(dataset.steps))
        return {f"validation_{key}": value for key, value in metrics.items()}

    def _parts(
        self, dataset: SequenceDataset, sampler: DistributedSampler[Any], length: int
    ) -> list[Indices]:
        """Return this rank's sequences of each minibatch; as many minibatches on every rank."""
        order = np.fromiter(sampler, np.int64, len(sampler))
        own = len(range(self._group.rank, len(dataset), self._group.size))
        size = max(1, self.config.minibatch_size // (length * self._group.size))
        # What the sampler repeats to give all ranks equally much is left out: a last minibatch may
        # be smaller on some ranks, and even empty.
        return [order[i : min(i + size, own)] for i in range(0, len(order), size)]

    def _losses(
        self, network: torch.nn.Module, batch: SequenceBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums over the steps that count: what is minimised, the loss, and the hits.

        The loss is the cross-entropy, or for continuous actions the squared error.
        """
        obs = torch.from_numpy(normalize(batch.obs.numpy(), *self.normalizer.arrays()))
        state = self.network.initial_state(obs.shape[1])
        head, _, _ = network(obs, batch.starts, state)
        distribution = self.network.distribution(head)
        if isinstance(distribution, Categorical):
            loss = -distribution.log_prob(batch.actions)
            hits = (head.argmax(-1) == batch.actions).float()
            return (
                (loss * batch.valid).sum(),
                (loss * batch.valid).sum(),
                (hits * batch.valid).sum(),
            )
        error = (head - batch.actions).square().mean(-1)
        # The deviation learns how far off the mean is, and does not pull at the mean itself.
        spread = Gaussian(head.detach(), distribution.log_std).log_prob(batch.actions)
        sums = [(v * batch.valid).sum() for v in (error - spread, error, torch.zeros_like(error))]
        return sums[0], sums[1], sums[2]

    def _descend(self, loss: Tensor, lr: float) -> Tensor:
        """Take one step of Adam and return the gradient's norm before clipping."""
        self._optimizer.zero_grad()
        loss.backward()
        bound = self.config.grad_clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), bound)
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.step()
        return norm

    def _means(self, sums: Tensor, count: float) -> dict[str, float]:
        loss, hits = (self._group.sum(sums.numpy()) / max(count, 1.0)).tolist()
        if self.spec.action_kind == "discrete":
            return {"loss": loss, "accuracy": hits}
        return {"loss": loss}

    def weights(self, version: int) -> Weights:
        """Return a copy of the policy to act with."""
        arrays = {
            name: value.detach().numpy().copy() for name, value in self.network.named_parameters()
        }
        arrays["normalizer.mean"], arrays["normalizer.std"] = self.normalizer.arrays()
        return Weights(version, arrays)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a bit-identical resume needs, as arrays of the same shapes everywhere."""
        parameters = list(self.network.parameters())
        adam = [self._optimizer.state.get(p, {}) for p in parameters]
        moments = {
            name: torch.cat([
                a.get(name, torch.zeros_like(p)).reshape(-1)
                for a, p in zip(adam, parameters, strict=True)
            ])
            for name in ("exp_avg", "exp_avg_sq")
        }  # fmt: skip
        return {
            "parameters": torch.cat([p.detach().reshape(-1) for p in parameters]).numpy(),
            **{name: values.numpy() for name, values in moments.items()},
            "adam_step": np.array([float(adam[0].get("step", 0.0))]),
            "count": np.array([self.normalizer.count]),
            "mean": self.normalizer.mean,
            "m2": self.normalizer.m2,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state."""
        begin = 0
        for parameter in self.network.parameters():
            rows = slice(begin, begin + parameter.numel())
            begin = rows.stop
            parts = {
                name: torch.from_numpy(np.array(state[name][rows], np.float32)).view_as(parameter)
                for name in ("parameters", "exp_avg", "exp_avg_sq")
            }
            with torch.no_grad():
                parameter.copy_(parts.pop("parameters"))
            step = torch.tensor(float(state["adam_step"][0]))
            self._optimizer.state[parameter] = {"step": step, **parts}
        values = {"count": state["count"][0], "mean": state["mean"], "m2": state["m2"]}
        self.normalizer.load_state_dict(values)


def _share(count: int, group: DataParallel) -> slice:
    """Return a rank's part of ``count`` items in a row."""
    return slice(count * group.rank // group.size, count * (group.rank + 1) // group.size)


def _loader(dataset: SequenceDataset, parts: list[Indices]) -> DataLoader[SequenceBatch]:
    batches: Any = parts
    whole: Any = _whole
    # Its own generator, so that torch's global one is left alone.
    generator = torch.Generator()
    return DataLoader(dataset, batch_sampler=batches, collate_fn=whole, generator=generator)


def _whole(batch: SequenceBatch) -> SequenceBatch:
    return batch
