"""N links that a scheme drives, as an agent in its place would see them and would have to act.

The scheme sends, and its flow's acknowledgements fill the observations. What an agent would hold,
its window or its pacing rate, is kept beside it: it follows the actions that are passed to `step`,
and stands in the observations where the scheme's own would stand. The label is the action that
brings it nearest to what the scheme holds at that moment, having seen the same acknowledgements as
the observation. Errors of coarse actions do not add up, since each label starts from where the
ones before have led.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.schemes import SCHEMES
from distrlcc.control.state import CWND, PACING
from distrlcc.env.batch import Floats, LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.errors import unknown_name
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import with_scheme
from distrlcc.types import IntervalStats


class DemonstrationBatch(LinkBatch):
    """A `LinkBatch` whose actions do not reach the links."""

    def __init__(self, n: int, config: EnvConfig, *, scheme: str, n_flows: int = 1) -> None:
        """Allocate N links of ``n_flows`` flows, the first of which runs the scheme.

        Raises:
            ConfigError: There is no such scheme.
        """
        if scheme not in SCHEMES or scheme == "agent":
            raise unknown_name("scheme", scheme, [name for name in SCHEMES if name != "agent"])
        super().__init__(n, config, n_flows=n_flows, with_labels=False)
        self._scheme = scheme
        self._held = np.zeros((2, n))

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""
        super().load(n, scenario)  # for an agent's first window and rate
        self._held[:, n] = [values[n] for values in super().held()]
        super().load(n, with_scheme(scenario, self._scheme))

    def held(self) -> tuple[Floats, Floats]:
        """Return what agents would hold: windows, packets, and pacing rates, packets/s."""
        return self._held[0], self._held[1]

    def stats(self) -> IntervalStats:
        """Return what the flows saw, with the windows and rates that agents would hold."""
        stats = super().stats()
        stats.cwnd, stats.pacing_rate = self._held.copy()
        return stats

    def labels(self) -> NDArray[Any]:
        """Return the actions that follow the scheme, ``[N]``."""
        return self.actions.label(self.target(), *self.held(), self._rtt())

    def target(self) -> Floats:
        """Return the windows that the scheme's sending amounts to, packets ``[N]``.

        A paced sender has its rate's worth of a round trip in flight, unless its window is less.
        """
        control = self.simulator.control[:: self.n_flows]
        cwnd, pacing = control[:, CWND], control[:, PACING]
        return np.where(pacing > 0, np.minimum(cwnd, pacing * self._rtt()), cwnd)

    def _rtt(self) -> Floats:
        """Return the newest RTTs, s; before the first sample, those of the empty links."""
        last = super().stats().rtt_last
        return np.where(last > 0, last, self.base_rtt)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint."""
        return {**super().state_dict(), "held": self._held.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of a batch of the same size and configuration."""
        super().load_state_dict(state)
        self._held = np.array(state["held"], float)
