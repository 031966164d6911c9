"""A policy as the controller of one sender, which acts as in the environment."""

import numpy as np
from numpy.typing import NDArray

from distrlcc.control import windows
from distrlcc.control.base import Held
from distrlcc.control.windows import WindowControl
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS, noise_held
from distrlcc.plugins import lent
from distrlcc.policy.numpy_policy import ActingPolicy, NumpyPolicy
from distrlcc.types import NANOSECONDS, IntervalStats


class PolicyController(Held):
    """A controller that acts once per step, as in the environment."""

    def __init__(
        self,
        policy: NumpyPolicy,
        actor: ActingPolicy,
        preference: float | None = None,
        always: bool = False,
    ) -> None:
        """Act for the first time, on an observation of zeros, as at an episode's start.

        ``actor`` is the policy's running state for one sender; ``always`` leaves out CUBIC's rule
        for paths outside of what policies hold.
        """
        spec = policy.spec
        self._least_step = round(spec.step_ms * 1e6)
        self._interval_rtts = spec.interval_rtts or 0.0
        self._observations = lent(spec.observation, OBSERVATIONS[spec.observation](1))
        self._actions = lent(spec.action, ACTIONS[spec.action])
        held = 0.0 if always else noise_held(spec.observation)
        self._windows = WindowControl(1, spec.pacing, spec.guard, held)
        self._preference = np.array([[] if preference is None else [preference]], float)
        self._actor = actor
        super().__init__(*self._actions.initial)
        unseen = self._observations.size + self._actions.size
        self._act(np.concatenate([np.zeros((1, unseen)), self._preference], axis=1))

    def _act(self, observation: NDArray[np.float64]) -> None:
        action = self._actor.act(observation.astype(np.float32))
        held = np.array([self.cwnd]), np.array([self.pacing_rate])
        cwnd, pacing = self._windows.apply(held, self._actions.apply(action, *held))
        self.cwnd, self.pacing_rate = float(cwnd[0]), float(pacing[0])
        self._previous = self._actions.encode(action)

    @property
    def guarded(self) -> bool:
        """Whether the guard holds a lower window than was chosen."""
        return bool(self._windows.lowered[0])

    def outside(self) -> dict[str, float]:
        """Return how long, s, and how often CUBIC's rule had the window alone, by cause."""
        s = self._windows.state[0]
        entries = int(s[windows.SHORT_ENTRIES]), int(s[windows.NOISY_ENTRIES])
        seconds = float(s[windows.OUTSIDE_TIME])
        names = ("outside_s", "short_path_entries", "noise_entries")
        return dict(zip(names, (seconds, *entries), strict=True))

    def step_ns(self, min_rtt: float) -> int:
        """Return the next step's length, ns, given the minimum RTT, s."""
        return max(self._least_step, int(min_rtt * NANOSECONDS * self._interval_rtts))

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Act on one step's statistics."""
        self._windows.observe(stats)
        seen = (self._observations.observe(stats), self._previous, self._preference)
        self._act(np.concatenate(seen, axis=1))
