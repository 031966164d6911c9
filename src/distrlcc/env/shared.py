"""N simulated links with K agents each, which share one policy; row ``K n + k`` is link n's k-th.

A link's agents are its scenario's first flows. A scenario may have fewer than K, and schemes' flows
after them; agents may start later and stop before the end. An agent is active from the first step
that begins at or after its start until a step ends at or after its stop: that step is its last.
Rows that are not active see zeros, are paid nothing, and their actions do nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import CWND, PACING
from distrlcc.env.batch import Floats, LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import LinkView
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Scenario
from distrlcc.types import NANOSECONDS

Bools = NDArray[np.bool_]

_HELD = np.array([CWND, PACING])


class SharedBatch(LinkBatch):
    """A `LinkBatch` with K agents on each link; every array that it returns is ``[N * K]``."""

    changing = LinkBatch.changing + " held rates is_agent active acted"

    def __init__(self, n: int, config: EnvConfig, *, n_flows: int = 1, **options: Any) -> None:
        """Allocate N links of ``n_flows`` flows, or of K if that is more; see `LinkBatch`."""
        self.agents = agents = config.agents
        super().__init__(n, config, n_flows=max(n_flows, agents), **options)
        rows = np.arange(n * agents)
        self._link = rows // agents
        self._flow = self._link * self.n_flows + rows % agents
        self._is_agent = np.zeros(n * agents, bool)
        self._held = np.zeros((2, n * agents))
        # Delivered packets/s of every flow, smoothed over a round trip: what shares are taken of.
        self._rates = np.zeros((n, self.n_flows))
        self._share = np.ones(n * agents)
        self.active = np.zeros(n * agents, bool)
        self.acted = np.zeros(n * agents, bool)
        """Which agents' actions counted in the newest step."""

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""
        self.simulator.load(n, scenario)
        rows = np.arange(n * self.agents, (n + 1) * self.agents)
        flows, control = self._flow[rows], self.simulator.control
        control[flows[len(scenario.flows) :]] = 0.0  # what an earlier scenario left
        self._held[:, rows] = control[flows][:, _HELD].T
        for place, row in enumerate(rows):
            self.begin_agent(int(row), scenario, self.held(), min(place, len(scenario.flows) - 1))
            self._is_agent[row] = (
                place < len(scenario.flows) and scenario.flows[place].scheme == "agent"
            )
        self._searched[rows] /= len(scenario.flows)
        control[flows[:, None], _HELD] = self._held[:, rows].T
        self._rates[n] = 0.0
        self.active[rows] = self._running()[rows]

    def held(self) -> tuple[Floats, Floats]:
        """Return the agents' windows, packets, and pacing rates, packets/s, for `advance`."""
        return self._held[0], self._held[1]

    def _running(self) -> Bools:
        flows, now = self.simulator.flows[self._flow], self.simulator.links[self._link, col.NOW]
        running = (flows[:, col.START] <= now) & (now < flows[:, col.STOP])
        return np.asarray(self._is_agent & running)

    def advance(self) -> None:
        """Advance every link by its step, with active agents' windows and rates as they are."""
        simulator = self.simulator
        simulator.control[self._flow[self.active][:, None], _HELD] = self._held[:, self.active].T
        simulator.advance(self.step_ns())
        self._held[:] = simulator.control[self._flow][:, _HELD].T
        extra = simulator.flows[:, col.EXTRA_RTT].reshape(self._rates.shape) / NANOSECONDS
        base_rtt = np.maximum(simulator.results[:, col.BASE_RTT, None] + extra, 1e-4)
        self.base_rtt = base_rtt[:, : self.agents].reshape(-1)
        begin, end = simulator.links[:, [col.STEP_START, col.NOW]].T[..., None]
        duration = (end - begin) / NANOSECONDS
        acked = simulator.flows[:, col.STEP_ACKED].reshape(self._rates.shape)
        weight = np.minimum(duration / base_rtt, 1.0)
        self._rates += weight * (acked / duration - self._rates)
        if self.config.reward.fairness_weight:
            self._share = self.share()

    def step_ns(self) -> NDArray[np.int64]:
        """Return each link's next step, ns; intervals are in its agents' least round trip."""
        least = np.full(self.simulator.n_links, round(self.config.step_ms * 1e6))
        if not self.config.interval_rtts:
            return least
        rtts = self.simulator.flows[self._flow, col.MIN_RTT]
        rtts = np.where(self.active & (rtts > 0), rtts, col.FOREVER).reshape(-1, self.agents)
        shortest = rtts.min(axis=1)
        intervals = np.where(shortest < col.FOREVER, shortest * self.config.interval_rtts, 0.0)
        return np.asarray(np.maximum(least, intervals.astype(np.int64)))

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Floats]:
        """Act, advance one step, and return observations and rewards; see the module.

        An agent that has just begun has its first observation, one that has just left its last.
        """
        self.acted = self.active
        observation, reward = super().step(actions)
        self.active = self._running()
        joined = np.flatnonzero(self.active & ~self.acted)
        self.observations.reset(joined)
        self._previous[joined] = 0.0
        observation[~self.acted] = 0.0
        observation[joined] = self.first_observation(joined)
        return observation, np.where(self.acted, reward, 0.0)

    def left(self) -> Bools:
        """Return which agents' newest step was their last."""
        return self.acted & ~self.active

    def view(self) -> LinkView:
        """Return the links' side of the newest step."""
        results = self.simulator.results[self._link]
        ran = self.ran()
        flows = ran.sum(axis=1)
        agents = ran[:, : self.agents] & self._is_agent.reshape(-1, self.agents)
        schemes = flows - agents.sum(axis=1)
        known = results[:, col.CAPACITY], results[:, col.USED], self.mean_rate, self.base_rtt
        return LinkView(*known, self._share, flows[self._link], schemes[self._link])

    def share(self) -> Floats:
        """Return what agents deliver, relative to an equal share among their link's flows.

        Rates are smoothed over a round trip; 1 is a fair share, and what one alone has.
        """
        running = self.ran()
        rates = np.where(running, self._rates, 0.0)
        fair = (rates.sum(axis=1) / np.maximum(running.sum(axis=1), 1))[self._link]
        own = rates[:, : self.agents].reshape(-1)
        return np.where(fair > 0, own / np.maximum(fair, 1e-9), 1.0)

    def labels(self) -> NDArray[Any]:
        """Return the oracle's actions at this moment: a fair share of the rate for each agent."""
        best = self.simulator.results[self._link, col.BEST_CWND]
        first = self.base_rtt.reshape(-1, self.agents)[:, 0][self._link]
        best = self.best_cwnd(best * self.base_rtt / first)
        return self.actions.label(best, *self.held(), self.base_rtt)
