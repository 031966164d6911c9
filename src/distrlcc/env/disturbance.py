"""What a host does to a sender, for training: actions that come late, and round trips that jitter.

Each episode draws its own strength, so that one policy meets quiet and busy hosts. Every draw is
named by (seed, environment's global index, episode, step): one process and many see the same.

Jitter is the time that a packet or its acknowledgement waits for the host. It adds to round trips
and never shortens one. A step's waits are taken as exponential with a mean of their own, which is
log-normal around the episode's: of ``m`` samples the least waits for ``mean / m``, the greatest for
``mean * H(m)``. Acknowledgements that wait beyond the step's end are counted in the next step. The
link, and so the reward, know nothing of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.seeding import normal, uniform
from distrlcc.types import IntervalStats, copy_arrays, restore_arrays

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_SPREAD = 1.0
"""Standard deviation of the log of a step's mean wait: hosts stand still now and then."""
_EULER = 0.5772156649015329
_DELAY, _STRENGTH, _STEP = 3, 4, 5
"""Names of draws, beside the environment's own."""
_STATE = "waiting delay age episode strength least last late late_rtt"


class Disturbance:
    """Delays the actions of N agents, and disturbs what they measure."""

    def __init__(self, indices: Indices, action_delay_steps: int, jitter_ms: float) -> None:
        """Take global indices ``[N]``, the greatest delay, and the greatest mean wait, ms."""
        n = len(indices)
        self._indices, self._jitter = indices, jitter_ms * 1e-3
        self._size = action_delay_steps + 1
        self._waiting: NDArray[Any] = np.zeros((self._size, n))
        self._rows = np.arange(n)
        self._delay = np.zeros(n, np.int64)
        self._age = np.zeros(n, np.int64)
        self._episode = np.zeros(n, np.int64)
        self._strength, self._least, self._last = np.zeros(n), np.zeros(n), np.zeros(n)
        self._late, self._late_rtt = np.zeros(n), np.zeros(n)
        self._key = np.uint64(0)

    def begin(self, which: Indices, key: np.uint64, episodes: Indices) -> None:
        """Begin episodes of these numbers in some rows; ``key`` is of the environments' draws."""
        self._key, self._episode[which] = key, episodes
        draws = uniform(key, self._indices[which], episodes, _DELAY)
        self._delay[which] = (draws * self._size).astype(np.int64)
        strength = uniform(key, self._indices[which], episodes, _STRENGTH)
        self._strength[which] = strength * self._jitter
        for values in (self._age, self._least, self._last, self._late, self._late_rtt):
            values[which] = 0

    def due(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Take actions ``[N]``; return those that take effect now, and where there is one."""
        self._waiting = self._waiting.astype(actions.dtype, copy=False)
        self._waiting[self._age % self._size, self._rows] = actions
        taken = self._waiting[(self._age - self._delay) % self._size, self._rows]
        return taken, self._age >= self._delay

    def measured(self, stats: IntervalStats) -> IntervalStats:
        """Return what the senders measure of a step, and count it."""
        age, self._age = self._age, self._age + 1
        if not self._jitter:
            return stats
        # The step's mean wait, and the acknowledgements that it carries into the next step.
        z = normal(self._key, self._indices, self._episode, _STEP, age)
        mean = self._strength * np.exp(_SPREAD * z - 0.5 * _SPREAD**2)
        late = np.floor(stats.acked * np.minimum(mean / stats.duration, 1.0))
        rtt = stats.rtt_sum / np.maximum(stats.acked, 1)
        acked = stats.acked - late + self._late
        rtt_sum = (stats.acked - late) * rtt + self._late_rtt + acked * mean
        # The least and greatest sample, those carried from the step before included.
        seen, carried = acked > 0, self._late > 0
        before = self._late_rtt / np.maximum(self._late, 1)
        low = np.where(stats.acked > 0, stats.rtt_min, np.inf)
        low = np.where(carried, np.minimum(low, before), low)
        high = np.where(carried, np.maximum(stats.rtt_max, before), stats.rtt_max)
        self._late, self._late_rtt = late, late * rtt
        samples = np.maximum(acked, 1.0)
        low = np.where(seen, low + mean / samples, 0.0)
        harmonic = np.maximum(np.log(samples) + _EULER + 0.5 / samples, 1.0)
        self._last = np.where(seen, stats.rtt_last + mean, self._last)
        fresh = seen & ((self._least == 0.0) | (low < self._least))
        self._least = np.where(fresh, low, self._least)
        return replace(
            stats,
            acked=acked,
            rtt_sum=np.where(seen, rtt_sum, 0.0),
            rtt_min=low,
            rtt_max=np.where(seen, high + mean * harmonic, 0.0),
            rtt_last=self._last,
            min_rtt=self._least,
            inflight=stats.inflight + late,
            delay_ewma=stats.delay_ewma + np.where(seen, mean * 1e3, 0.0),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes."""
        return copy_arrays(self, _STATE)

    def load_state_dict(self, state: dict[str, Any], key: np.uint64) -> None:
        """Take a `state_dict` of the same size; the key is the environments'."""
        self._waiting = np.array(state["waiting"])  # of the actions' type
        restore_arrays(self, _STATE, state)
        self._key = key
