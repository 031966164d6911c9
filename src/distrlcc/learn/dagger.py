"""Imitation of the oracle by data set aggregation (DAgger, https://arxiv.org/abs/1011.0686).

The expert acts in the first round and the policy afterwards, as in Indigo
(https://www.usenix.org/conference/atc18/presentation/yan-francis, section 4.2). The expert labels
every state met, and each round trains on all data so far.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrlcc.learn.config import DaggerConfig, scheduled
from distrlcc.learn.learner import Weights
from distrlcc.learn.minibatches import Batch, MinibatchPlan, batch_of, plan_minibatches
from distrlcc.learn.model import Learner
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec
from distrlcc.seeding import bits


class LabelledSteps:
    """A ring of rows, each of one sequence per environment; when full the oldest make room."""

    def __init__(self, spec: PolicySpec, capacity: int, count: int, length: int) -> None:
        """Allocate a ring of ``capacity`` rows of N environments' sequences of ``length`` steps."""
        self.count, self._length, self._capacity = count, length, capacity
        self._written = 0  # rows, since the beginning
        self._replaced: tuple[int, Tensor, list[Tensor]] | None = None
        shape = (length, capacity * count)
        self.ring = Batch(
            obs=torch.zeros(*shape, spec.observation_size),
            actions=torch.from_numpy(spec.no_actions(*shape)),
            columns=torch.zeros(0, *shape),
            starts=torch.zeros(shape, dtype=torch.bool),
            states=torch.zeros(spec.state_shape(capacity * count)),
            valid=torch.zeros(shape, dtype=torch.bool),
        )

    @property
    def rows(self) -> int:
        """Rows held."""
        return min(self._written, self._capacity)

    @property
    def samples(self) -> int:
        """Samples held, with padding and steps without an agent, which are in no loss."""
        return self.rows * self.count * self._length

    def add(self, batch: Batch) -> None:
        """Copy whole rows of sequences in; of more than fit, the last ones stay."""
        order = torch.arange(batch.count)[-self._capacity * self.count :]
        kept = batch.take(order)
        if kept.valid is None:
            kept.valid = torch.ones_like(kept.starts)
        places = (order + self._written * self.count) % (self._capacity * self.count)
        arrays = self._arrays()
        old = [whole.index_select(1, places) for whole in arrays.values()]
        self._replaced = (self._written, places, old)
        for name, whole in arrays.items():
            whole.index_copy_(1, places, getattr(kept, name))
        self._written += batch.count // self.count

    def take_back(self) -> None:
        """Undo the last :meth:`add`."""
        if self._replaced is not None:
            self._written, places, old = self._replaced
            for whole, before in zip(self._arrays().values(), old, strict=True):
                whole.index_copy_(1, places, before)
            self._replaced = None

    def state_dict(self) -> dict[str, Any]:
        """Return the sequences held and the counter."""
        held = self.rows * self.count
        arrays = {k: v[:, :held].clone() for k, v in self._arrays().items()}
        sizes = {"written": self._written, "capacity": self._capacity, "count": self.count}
        return sizes | {"length": self._length} | arrays

    @classmethod
    def from_state(cls, spec: PolicySpec, state: dict[str, Any]) -> "LabelledSteps":
        """Build the data set that :meth:`state_dict` was taken of."""
        data = cls(spec, int(state["capacity"]), int(state["count"]), int(state["length"]))
        data._written = int(state["written"])
        for name, whole in data._arrays().items():
            whole[:, : data.rows * data.count] = torch.as_tensor(state[name])
        return data

    def _arrays(self) -> dict[str, Tensor]:
        names = ("obs", "actions", "starts", "states", "valid")
        return {name: getattr(self.ring, name) for name in names}


class Dagger(Learner):
    """DAgger; its batches are rollouts."""

    config: DaggerConfig
    _dataset: LabelledSteps | None = None
    _added = -1  # version whose data were added last

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Take one rollout of every rank into the data, train on all of it and return metrics."""
        config = self.config
        # Every pass normalises afresh, so the moments may include the newest data at once.
        obs, idle = rollout.obs[: rollout.steps], rollout.idle
        self.absorb(self.reducer.sum(self.moments(obs if idle is None else obs[~idle])))
        sums = np.array([rollout.samples, rollout.count])
        samples, envs = self.reducer.sum(sums.astype(np.float64)).tolist()
        # Label the rollout and take it into the data.
        if self._dataset is None:
            length = rollout.sequence_length
            capacity = max(1, int(config.capacity * self.scale.batches // (length * envs)))
            self._dataset = LabelledSteps(self.spec, capacity, rollout.count, length)
        data = self._dataset
        if self._added != self.version:  # else an update that failed is done again
            labels = torch.from_numpy(rollout.expert_actions[: rollout.steps])
            columns = torch.zeros(0, rollout.steps, rollout.count)
            data.add(batch_of(rollout, torch.from_numpy(obs), labels, columns))
            self._added = self.version
        total = float(self.reducer.sum(np.array([float(data.samples)]))[0])
        # Ranks hold different numbers of rows once one was cut short: plan for the mean.
        rows = int(total / (envs * rollout.sequence_length))
        size = config.minibatch_size * self.scale.batches
        plan = plan_minibatches(total, size, rows, envs, rollout.first_index)
        plan = replace(plan, rows=data.rows)
        # Passes over all data, until one gains too little.
        lr = scheduled(config.lr_schedule, self._env_steps, config.lr) * self.scale.begin()
        before, epochs = math.inf, 0
        while epochs < config.num_epochs:
            loss, accuracy = self._epoch(data, plan, epochs, lr)
            epochs += 1
            if before - loss < config.min_gain:
                break
            before = loss
        staleness = float(self.version - rollout.version)
        self.version += 1
        self._env_steps += int(samples)
        hits = {"imitation_accuracy": accuracy} if self.spec.action_kind == "discrete" else {}
        return hits | {
            "imitation_loss": loss,
            "epochs": float(epochs),
            "dataset_samples": total,
            "lr": lr,
            "staleness": staleness,
        }

    def _epoch(
        self, data: LabelledSteps, plan: MinibatchPlan, epoch: int, lr: float
    ) -> tuple[float, float]:
        sums = torch.zeros(3)
        key = np.uint64(bits(self._minibatch_key, self.version, epoch))
        for chosen in plan.minibatches(data.rows, data.count, key):
            chosen = data.ring.used(chosen)
            if not len(chosen):
                self.optimizer.step(None, 0, lr, self.config.grad_clip)
                continue
            part = data.ring.take(chosen)
            part.obs = torch.from_numpy(self.normalize(part.obs.numpy()))
            part = part.to(self.device)
            loss, spread, hits = self.imitate(part)
            loss, accuracy = part.mean(loss), part.mean(hits)
            samples = part.samples
            self.optimizer.step(loss - part.mean(spread), samples, lr, self.config.grad_clip)
            sums += torch.stack([loss.detach().cpu(), accuracy.cpu(), torch.ones(())]) * samples
        self.optimizer.average()
        loss_sum, accuracy_sum, count = self.reducer.sum(sums.double().numpy()).tolist()
        return loss_sum / max(count, 1.0), accuracy_sum / max(count, 1.0)

    def weights(self) -> Weights:
        """Return a copy of the policy to act with; the expert acts in the first rounds."""
        expert_acts = self.version < self.config.expert_rounds
        return replace(super().weights(), expert_acts=expert_acts)

    def state_dict(self) -> dict[str, Any]:
        """Return what is shared, and this rank's data set."""
        dataset = None if self._dataset is None else self._dataset.state_dict()
        return self.shared_state() | {"dataset": dataset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`'s state; without a data set its own stays."""
        super().load_state_dict(state)
        if state.get("dataset") is not None:
            self._dataset = LabelledSteps.from_state(self.spec, state["dataset"])

    def undo_update(self, before: dict[str, Any]) -> None:
        """Leave no trace of an update that was broken off, in the data neither."""
        super().undo_update(before)
        if self._dataset is not None and self._added == self.version:
            self._dataset.take_back()
            self._added = -1
