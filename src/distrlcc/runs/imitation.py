"""Imitation from a data set: the `Source` of its epochs, and a run of it."""

import warnings
from typing import Any

import numpy as np

from distrlcc.data.reader import StoredData
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.imitation import Cloning, Epoch, SequenceDataset, share_of_minibatches
from distrlcc.learn.learner import Reducer, Weights
from distrlcc.learn.model import limit_threads
from distrlcc.runs.run_config import ImitateConfig
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import Source, Stop, check_data, spec_in
from distrlcc.seeding import stream_key, uniform


class SequenceSource(Source):
    """A `Source` whose batches are epochs: a rank's share of each minibatch of a data set."""

    def __init__(
        self, config: ImitateConfig, data: StoredData, rank: int = 0, size: int = 1
    ) -> None:
        """Choose validation episodes; ``size`` ranks share minibatches; raises ConfigError."""
        check_data(config.env, data)
        self.spec = spec_in(data.manifest.spaces, config)
        self._config, self._rank, self._size, self._epoch = config, rank, size, 0
        section, recurrent = config.imitation, self.spec.state_size > 0
        # Hold some episodes out, the same ones on every rank.
        count = len(data.steps)
        draws = uniform(stream_key(config.seed, "validation"), np.arange(count))
        order = np.argsort(draws, kind="stable")
        share = section.validation_share
        held = min(round(share * count) or int(share > 0), count - 1)
        if share and not held:
            warnings.warn("the data set has one episode: none is held out", stacklevel=2)
        validation, episodes = np.sort(order[:held]), np.sort(order[held:])
        # Train on short sequences.
        burn_in = section.burn_in if recurrent else 0
        self._training = SequenceDataset(data, episodes, section.sequence_length, burn_in)
        first, last = (len(episodes) * edge // size for edge in (rank, rank + 1))
        self._own_episodes = episodes[first:last]
        # An LSTM is measured as it acts: over whole episodes.
        longest = int(data.steps[validation].max(initial=1))
        self._length = longest if recurrent else section.sequence_length
        self._validation = SequenceDataset(data, validation, self._length)
        self.interrupted: Stop = lambda steps: False
        """Asked now and then, with the steps of this epoch so far; True breaks it off."""

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self._training.steps * self._config.epochs

    def next(self, weights: Weights, stop: Stop | None = None) -> tuple[Epoch, CollectStats]:
        """Return the next epoch; neither what acts nor what the others do matters to it."""
        section, number = self._config.imitation, self._epoch
        self._epoch += 1
        most, where = section.minibatch_size, (self._rank, self._size)
        training, validation = self._training, self._validation
        own = share_of_minibatches(
            training, most // section.sequence_length, *where, self._config.seed, number
        )
        checked = share_of_minibatches(validation, most // self._length, *where)

        def interrupted(steps: int) -> bool:
            return self.interrupted(number * training.steps + steps)

        epoch = Epoch(number, training, own, validation, checked, self._own_episodes, interrupted)
        steps = sum(int(training.counts(part).sum()) for part in own)
        return epoch, CollectStats(steps=float(steps))

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on with the epoch after those that were done; it follows from its number."""
        self._epoch = int(state["counters"]["update"])
        return True


def imitation_run(
    config: ImitateConfig,
    data: StoredData,
    rank: int = 0,
    size: int = 1,
    reducer: Reducer | None = None,
) -> RunState:
    """Return a run that imitates an expert; see `SequenceSource`."""
    limit_threads()
    source = SequenceSource(config, data, rank, size)
    learner = Cloning(config.imitation, source.spec, config.seed, reducer)
    notes = {"scheme": data.manifest.origin.scheme}
    return RunState(config, source, learner, total_steps=source.total_steps, notes=notes)
