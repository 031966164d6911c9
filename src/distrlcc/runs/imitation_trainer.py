"""A rank's parts of an imitation run, and the state that all ranks share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from distrlcc.config import from_toml
from distrlcc.data.reader import StoredData
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError, DatasetError
from distrlcc.learn.data_parallel import DataParallel
from distrlcc.learn.imitation import Imitator
from distrlcc.learn.learner import Weights
from distrlcc.learn.sequences import Indices, SequenceDataset
from distrlcc.policy.policy_file import PolicyFile
from distrlcc.policy.spec import PolicySpec
from distrlcc.runs.held_out import Acting
from distrlcc.runs.imitate_config import ImitateConfig
from distrlcc.runs.stopper import Stopper
from distrlcc.seeding import stream_key, uniform

_SIGNALS = 65
"""Signals have numbers below this."""


@dataclass
class ImitationCounters:
    """How far a run is, and its best policy so far."""

    epoch: int = 0
    """Epochs done."""
    steps: int = 0
    """Steps trained on, each epoch's counted."""
    seconds: float = 0.0
    """Time since the start, s, scoring and saving included, time between resumes not."""
    best_score: float = -1e30
    best_epoch: int = 0
    best_acting: Acting = "argmax"
    best_utilisation: float = 0.0
    best_queueing_delay: float = 0.0
    """In base RTTs."""
    signal: int = 0
    """Signal that is ending the run early; 0: none."""

    def summary(self) -> str:
        """Return a line about the best policy; nothing before the first scoring."""
        if not self.best_epoch:
            return ""
        return (
            f"held-out links: utilisation {self.best_utilisation:.3f}, queueing delay "
            f"{self.best_queueing_delay:.3f} RTT (best at epoch {self.best_epoch} of {self.epoch})"
        )


class ImitationTrainer:
    """A rank's parts, and the state that all ranks share."""

    def __init__(self, config: ImitateConfig, data: StoredData, group: DataParallel) -> None:
        """Choose the validation episodes and build the network.

        Raises:
            ConfigError: The configuration does not fit the data set.
        """
        self.config, self.data, self.group = config, data, group
        self.spec = policy_spec(config, data)
        self.imitator = Imitator(config.imitation, self.spec, config.seed, group)
        share, key = config.imitation.validation_share, stream_key(config.seed, "validation")
        count = len(data.steps)
        order = np.argsort(uniform(key, np.arange(count)), kind="stable")
        held = min(round(share * count) or int(share > 0), count - 1)
        self.training_episodes: Indices = np.sort(order[held:])
        section, recurrent = config.imitation, self.spec.state_size > 0
        self._training = SequenceDataset(
            data, self.training_episodes, section.sequence_length,
            section.burn_in if recurrent else 0,
        )  # fmt: skip
        # An LSTM is measured as it acts: over whole episodes.
        validation = np.sort(order[:held])
        longest = int(data.steps[validation].max(initial=1))
        self._length = longest if recurrent else section.sequence_length
        self._validation = SequenceDataset(data, validation, self._length)
        self.counters = ImitationCounters()
        self.best: Weights | None = None

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self._training.steps * self.config.epochs

    def epoch(self, stopped: Callable[[int], bool]) -> dict[str, float] | None:
        """Train for one epoch and validate.

        Args:
            stopped: Asked now and then, with the steps done so far, on all ranks at once.

        Returns:
            Metrics; None if it was broken off.
        """
        counters, begin = self.counters, time.perf_counter()
        metrics = self.imitator.train(
            self._training, counters.epoch, lambda steps: stopped(counters.steps + steps)
        )
        if metrics is None:
            return None
        metrics["steps_per_second"] = self._training.steps / (time.perf_counter() - begin)
        if len(self._validation):
            metrics |= self.imitator.validate(self._validation, self._length)
        counters.epoch += 1
        counters.steps += self._training.steps
        return {"steps": float(counters.steps), **metrics}

    def heard(self, stopper: Stopper) -> bool:
        """Say whether any rank got a signal, and note which."""
        heard = np.zeros(_SIGNALS)
        heard[stopper.signal] = 1.0
        counts = self.group.sum(heard)
        counts[0] = 0.0
        self.counters.signal = int(np.argmax(counts))  # 0 where no signal was heard
        return self.counters.signal > 0

    def share_state(self) -> None:
        """Give rank 0's state, as loaded, to all ranks."""
        counters, group = self.counters, self.group
        leads = group.rank == 0
        state = {
            name: group.sum(np.asarray(value, float) * leads)
            for name, value in self.imitator.state_dict().items()
        }
        progress = group.sum(np.array([counters.epoch, counters.steps], float) * leads)
        counters.epoch, counters.steps = (int(value) for value in progress)
        self.imitator.load_state_dict(state)

    def policy(self) -> PolicyFile:
        """Return the best policy so far, acting in the better way."""
        counters, config = self.counters, self.config
        weights = self.best or self.imitator.weights(counters.epoch)
        notes = {
            "recipe": "imitate",
            "scheme": self.data.manifest.origin.scheme,
            "seed": config.seed,
            "epoch": counters.best_epoch,
            "steps": counters.steps,
            "held_out_reward": counters.best_score,
        }
        return PolicyFile(self.spec, weights.arrays, counters.best_acting, notes)


def policy_spec(config: ImitateConfig, data: StoredData) -> PolicySpec:
    """Return the spec of the policy that a run trains.

    Raises:
        ConfigError: The environment's spaces or steps are not those of the data set.
        DatasetError: Those of the data set are not those of this distrlcc.
    """
    spaces, env = data.manifest.spaces, config.env
    collected = data_env(data)
    for name in ("observation", "action", "step_ms", "interval_rtts"):
        has, expected = getattr(env, name), getattr(collected, name)
        if has != expected:
            raise ConfigError(
                f"env.{name} is {has!r}, the data set was collected with {expected!r}; leave it "
                "so, or collect again"
            )
    batch = LinkBatch(1, env)
    if batch.observation_size != spaces.observation_size:
        raise DatasetError(
            f"{data.folder}: its {spaces.observation!r} observations have "
            f"{spaces.observation_size} elements, this distrlcc's have {batch.observation_size}; "
            "collect again"
        )
    return PolicySpec(
        observation=spaces.observation,
        observation_size=spaces.observation_size,
        action=spaces.action,
        action_kind=spaces.action_kind,
        action_size=spaces.action_size,
        kind=config.network.kind,
        hidden=config.network.hidden,
        activation=config.network.activation,
        step_ms=env.step_ms,
        interval_rtts=env.interval_rtts or None,
    )


def data_env(data: StoredData) -> EnvConfig:
    """Return the environment that a data set was collected in.

    Raises:
        DatasetError: It is not one of this distrlcc.
    """
    try:
        return from_toml(EnvConfig, data.manifest.origin.env, source="its environment")
    except ConfigError as error:
        raise DatasetError(f"{data.folder}: {error}; collect again") from None
