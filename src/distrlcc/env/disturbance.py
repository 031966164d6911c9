"""Disturbances between sender and link in training: late actions, jitter, cuts, the kernel's TCP.

Each episode draws its own delay and jitter, so that one policy meets quiet and busy hosts. Every
draw is named by (seed, link's and agent's numbers, episode, step): one process and many see the
same.

Jitter is the time that a packet or its acknowledgement waits for the host. It adds to round trips
and never shortens one. A step's waits are taken as exponential. Their mean is the step's own, drawn
log-normally around the episode's. Of ``m`` samples the least waits for ``mean / m``, the greatest
for ``mean * H(m)``. Acknowledgements that wait beyond the step's end are counted in the next step.
The link and the reward do not see it.

Cuts multiply a window with a part drawn from 1/8 to 1, log-uniformly, at random times, as losses
can leave it. Otherwise an agent sees a window that is far too small only at the start, and a policy
that meets one later may stay there.

The kernel's habits are those of a policy in ``net/kernel/distrlcc.bpf.c``, and of the other end.

* Every second packet is acknowledged, a single one after 40 ms: `Link.delayed_acks`, of all flows
  of the link, which the batch has.
* A step without an acknowledgement is acted upon at the next one: up to eight actions add up, and
  the window in force stays meanwhile.
* That window is `FLOOR` packets at least, and sent at `PACING` windows per smoothed round trip.

Left out are application-limited steps, the guard, retransmissions, whole microseconds and samples
that Linux marks as delayed (of packets that are not full). The smoothed RTT is not of the older
packet of each pair, and Indigo's averages stay those of single packets.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import MIN_CWND
from distrlcc.env.config import EnvConfig
from distrlcc.seeding import Key, normal, uniform
from distrlcc.types import IntervalStats, copy_state, restore_state

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SPREAD = 1.0  # standard deviation of the log of a step's mean wait: hosts stand still now and then
_DELAY, _STRENGTH, _STEP, _KERNEL, _WHEN, _PART = 3, 4, 5, 6, 7, 8
"""Names of draws, beside the environment's own."""
FLOOR, PACING, CATCH_UP = 4.0, 1.25, 8
"""The kernel's program: least window, windows per round trip, actions that it makes up for."""
MOST_CUT = 8.0  # a window that is cut is divided by this at most
_STATE = "waiting delay age episode strength least last late late_rtt"
_CUT_STATE, _KERNEL_STATE = " left", " in_kernel chosen silent srtt"
PLACE = 1 << 40  # what lies between the numbers of a link's agents


class Disturbance:
    """Delays N agents' actions, cuts their windows, and disturbs what they measure."""

    def __init__(self, indices: Indices, config: EnvConfig) -> None:
        """Take the agents' numbers ``[N]``: a link's, and `PLACE` times the place there."""
        n = len(indices)
        self._indices, self._jitter, self._kernel = indices, config.jitter_ms * 1e-3, config.kernel
        self._cuts = config.cuts_per_s
        self._changing = _STATE + _CUT_STATE * (self._cuts > 0) + _KERNEL_STATE * (self._kernel > 0)
        self._size = config.action_delay_steps + 1
        self._waiting: NDArray[Any] = np.zeros((self._size, n))
        self._rows = np.arange(n)
        self._delay = np.zeros(n, np.int64)
        self._age = np.zeros(n, np.int64)
        self._episode = np.zeros(n, np.int64)
        self._strength, self._least, self._last = np.zeros(n), np.zeros(n), np.zeros(n)
        self._late, self._late_rtt = np.zeros(n), np.zeros(n)
        self._left = np.ones(n)  # of a window that was cut in the newest step
        self.in_kernel = np.zeros(n, bool)
        self._chosen = np.zeros((2, n))  # in the kernel; 0 before the first action
        self._silent = np.zeros(n, np.int64)  # steps since an acknowledgement
        self._srtt = np.zeros(n)
        self._key = np.zeros(n, np.uint64)

    def begin(
        self, which: Indices, key: Key, episodes: Indices, indices: Indices | None = None
    ) -> None:
        """Begin episodes of these numbers in some rows, whose agents ``indices`` may tell anew."""
        self._key[which], self._episode[which] = key, episodes
        if indices is not None:
            self._indices[which] = indices
        draws = uniform(key, self._indices[which], episodes, _DELAY)
        self._delay[which] = (draws * self._size).astype(np.int64)
        strength = uniform(key, self._indices[which], episodes, _STRENGTH)
        self._strength[which] = strength * self._jitter
        for values in (self._age, self._least, self._last, self._late, self._late_rtt):
            values[which] = 0
        self._left[which] = 1
        draws = uniform(key, self._indices[which] % PLACE, episodes, _KERNEL)
        self.in_kernel[which] = draws < self._kernel
        self._silent[which] = self._srtt[which] = 0
        self._chosen[:, which] = 0

    def due(self, actions: NDArray[Any]) -> tuple[NDArray[Any], Bools]:
        """Take actions ``[N]``; return those that take effect now, and where there is one."""
        self._waiting = self._waiting.astype(actions.dtype, copy=False)
        self._waiting[self._age % self._size, self._rows] = actions
        taken = self._waiting[(self._age - self._delay) % self._size, self._rows]
        return taken, (self._age >= self._delay) & (~self.in_kernel | (self._silent < CATCH_UP))

    def chosen(self, cwnd: Floats, pacing: Floats) -> tuple[Floats, Floats]:
        """Return the windows and rates to be changed next, of links that have these."""
        cwnd, pacing = np.where(self._chosen.any(axis=0), self._chosen, (cwnd, pacing))
        return np.maximum(self._left * cwnd, np.minimum(cwnd, MIN_CWND)), pacing

    def in_force(self, chosen: Floats, held: Floats, active: Bools | bool = True) -> Floats:
        """Take what the active chose, ``[2, N]``; return the windows and rates that links get."""
        if not self._kernel:
            return chosen
        self._chosen = np.where(self.in_kernel & active, chosen, 0.0)
        cwnd, pacing = chosen
        whole = np.maximum(np.floor(cwnd), FLOOR)
        rate = np.where(self._srtt > 0, PACING * whole / np.maximum(self._srtt, 1e-6), 0.0)
        new = np.stack([whole, np.where(pacing > 0, pacing, rate)])
        return np.where(self.in_kernel, np.where(self._silent > 0, held, new), chosen)

    def measured(self, stats: IntervalStats, active: Bools | bool = True) -> IntervalStats:
        """Return what the ``active`` ``[N]`` senders measure of a step, and count it."""
        if self._cuts:
            names = self._key, self._indices, self._episode
            cut = active & (uniform(*names, _WHEN, self._age) < self._cuts * stats.duration)
            part = MOST_CUT ** -uniform(*names, _PART, self._age)
            self._left = np.where(cut, part, 1.0)
        # In the kernel a policy observes the window that it chose.
        if self._kernel or self._cuts:
            cwnd, pacing = self.chosen(stats.cwnd, stats.pacing_rate)
            stats = replace(stats, cwnd=cwnd, pacing_rate=pacing)
        if self._jitter:
            stats = self._jittered(stats, active)
        seen = stats.acked > 0
        self._age = np.where(active, self._age + 1, 0)
        self._silent = np.where(seen | np.logical_not(active), 0, self._silent + 1)
        if self._kernel:
            # Smoothed by an eighth for each acknowledgement (RFC 6298), of two packets.
            weight = np.where(self._srtt > 0, 1.0 - 0.875 ** (stats.acked / 2), 1.0)
            mean = stats.rtt_sum / np.maximum(stats.acked, 1)
            self._srtt += np.where(seen, weight * (mean - self._srtt), 0.0)
        return stats

    def _jittered(self, stats: IntervalStats, active: Bools | bool) -> IntervalStats:
        # The step's mean wait, and the acknowledgements that it carries into the next step.
        z = normal(self._key, self._indices, self._episode, _STEP, self._age)
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
        self._late = np.where(active, late, 0.0)
        self._late_rtt = self._late * rtt
        samples = np.maximum(acked, 1.0)
        harmonic = np.maximum(np.log(samples) + np.euler_gamma + 0.5 / samples, 1.0)
        low = np.where(seen, low + mean / samples, 0.0)
        # The newest sample and the least ever, of those that were measured.
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
        return copy_state(self, self._changing)

    def load_state_dict(self, state: dict[str, Any], key: Key, indices: Indices) -> None:
        """Take a `state_dict` of the same size; key and numbers are the environments'."""
        self._waiting = np.array(state["waiting"])  # of the actions' type
        restore_state(self, self._changing, state)
        self._key[:], self._indices = key, indices
