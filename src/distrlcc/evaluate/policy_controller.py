"""A policy at a sender's wheel: interval statistics in, window and pacing rate out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.evaluate.contender import Contender
from distrlcc.types import NANOSECONDS, Ack, IntervalStats


class PolicyController:
    """A `distrlcc.control.base.Controller` that acts once per step, as in the environment."""

    def __init__(self, contender: Contender, *, seed: int = 0) -> None:
        """Act for the first time, on an observation of zeros, as at an episode's start.

        Args:
            contender: Has a policy.
            seed: Of its draws, if it acts by sampling.
        """
        assert contender.policy is not None
        spec = contender.policy.spec
        self._least_step = round(spec.step_ms * 1e6)
        self._interval_rtts = spec.interval_rtts or 0.0
        self._observations = OBSERVATIONS[spec.observation](1)
        self._actions = ACTIONS[spec.action]
        preference = [] if contender.preference is None else [contender.preference]
        self._preference = np.array([preference], float)
        self._actor = contender.actor(1, seed)
        cwnd, pacing = self._actions.initial
        self._cwnd, self._pacing = np.array([cwnd]), np.array([pacing])
        unseen = self._observations.size + self._actions.size
        self._act(np.concatenate([np.zeros((1, unseen)), self._preference], axis=1))

    def _act(self, observation: NDArray[np.float64]) -> None:
        action = self._actor.act(observation.astype(np.float32))
        self._cwnd, self._pacing = self._actions.apply(action, self._cwnd, self._pacing)
        self._previous = self._actions.encode(action)

    @property
    def cwnd(self) -> float:
        """Congestion window, packets."""
        return float(self._cwnd[0])

    @property
    def pacing_rate(self) -> float:
        """Pacing rate, packets/s; 0: the window alone limits."""
        return float(self._pacing[0])

    def step_ns(self, min_rtt: float) -> int:
        """Return the next step's length, ns, given the minimum RTT, s."""
        return max(self._least_step, int(min_rtt * NANOSECONDS * self._interval_rtts))

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Leave the window as it is until the step's end."""

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Leave the window as it is until the step's end."""

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Act on one step's statistics."""
        seen = (self._observations.observe(stats), self._previous, self._preference)
        self._act(np.concatenate(seen, axis=1))
