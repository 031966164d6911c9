"""N senders on N links: the simulator, what the agents see, do and are paid; no episodes yet.

The vector environment adds episodes to it, and evaluation drives it as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import CWND, PACING
from distrlcc.env.actions import ACTIONS
from distrlcc.env.config import EnvConfig
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS, LinkView
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.sim.trace import load_trace
from distrlcc.types import NANOSECONDS, PACKET_BYTES, IntervalStats

Floats = NDArray[np.float64]

_PACKETS_PER_MBIT = 1e6 / (8 * PACKET_BYTES)


def mean_packet_rate(scenario: Scenario) -> float:
    """Return a link's mean rate over the scenario's changes, packets/s."""
    link = scenario.link
    if link.trace is not None:
        return load_trace(link.trace).mean_mbps * _PACKETS_PER_MBIT
    rate, since, total = link.rate_mbps or 0.0, 0.0, 0.0
    for change in link.changes:
        if change.rate_mbps is not None and change.at_s < scenario.duration_s:
            total += rate * (change.at_s - since)
            rate, since = change.rate_mbps, change.at_s
    total += rate * (scenario.duration_s - since)
    return total / scenario.duration_s * _PACKETS_PER_MBIT


class LinkBatch:
    """N links with one agent each (flow 0); other flows run their own schemes."""

    def __init__(
        self,
        n: int,
        config: EnvConfig,
        *,
        n_flows: int = 1,
        with_histograms: bool = False,
        with_labels: bool = True,
    ) -> None:
        """Allocate N links of ``n_flows`` flows.

        Args:
            n: Links, N.
            config: What the agents see, do and are paid for.
            n_flows: Flows on each link, K; the agent's is the first.
            with_histograms: Keep the simulator's delay histograms.
            with_labels: Keep the oracle's labels.
        """
        self.config = config
        self.simulator = Simulator(
            n,
            n_flows,
            with_ewmas=config.observation.startswith("indigo"),
            with_best=with_labels,
            with_histograms=with_histograms,
        )
        self.observations = OBSERVATIONS[config.observation](n)
        self.actions = ACTIONS[config.action]
        self._reward = REWARDS[config.reward.name]
        self.n_flows = n_flows
        self.newest = IntervalStats(*np.zeros((len(IntervalStats.names()), n)))
        """What the agents saw in the newest `step`, ``[N]``."""
        self._previous = np.zeros((n, self.actions.size))
        self.mean_rate = np.ones(n)
        self.base_rtt = np.ones(n)

    @property
    def observation_size(self) -> int:
        """Elements of an observation: the space's and the previous action's."""
        return self.observations.size + self.actions.size

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""
        self.simulator.load(n, scenario)
        control = self.simulator.control[n * self.n_flows]
        if scenario.flows[0].scheme == "agent":
            if scenario.flows[0].cwnd is None:
                control[CWND] = self.actions.initial[0]
            if scenario.flows[0].pacing_mbps is None:
                control[PACING] = self.actions.initial[1]
        self.mean_rate[n] = mean_packet_rate(scenario)
        link = scenario.link
        service = 0.0 if link.rate_mbps is None else 1 / (link.rate_mbps * _PACKETS_PER_MBIT)
        extra = scenario.flows[0].extra_rtt_ms
        self.base_rtt[n] = (2 * link.delay_ms + extra) * 1e-3 + service
        self.observations.reset(np.array([n]))
        self._previous[n] = 0.0

    def first_observation(self, which: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the observations of links that were just loaded: nothing seen yet."""
        return np.zeros((len(which), self.observation_size), np.float32)

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Floats]:
        """Act, advance one step, and return observations ``[N, D]`` and rewards ``[N]``."""
        cwnd, pacing = self.held()
        cwnd[:], pacing[:] = self.actions.apply(actions, cwnd, pacing)
        self.advance()
        self.newest = stats = self.stats()
        self._previous = self.actions.encode(actions)
        observation = np.concatenate([self.observations.observe(stats), self._previous], axis=1)
        reward = self._reward(stats, self.view(), self.config.reward)
        return observation.astype(np.float32), reward

    def held(self) -> tuple[Floats, Floats]:
        """Return views of the agents' windows, packets, and pacing rates, packets/s, ``[N]``."""
        control = self.simulator.control[:: self.n_flows]
        return control[:, CWND], control[:, PACING]

    def advance(self) -> None:
        """Advance every link by its step, with windows and rates as they are."""
        self.simulator.advance(self.step_ns())
        extra = self.simulator.flows[:: self.n_flows, col.EXTRA_RTT] / NANOSECONDS
        self.base_rtt = np.maximum(self.simulator.results[:, col.BASE_RTT] + extra, 1e-4)

    def step_ns(self) -> NDArray[np.int64]:
        """Return each link's next step, ns: `step_ms`, or the interval in round trips."""
        least = round(self.config.step_ms * 1e6)
        rows = self.simulator.flows[:: self.n_flows, col.MIN_RTT]
        return np.maximum(least, (rows * self.config.interval_rtts).astype(np.int64))

    def stats(self) -> IntervalStats:
        """Return what the agents saw in the newest step, ``[N]``."""
        stats = self.simulator.stats()
        if self.n_flows == 1:
            return stats
        columns = {name: getattr(stats, name)[:: self.n_flows] for name in stats.names()}
        return IntervalStats(**columns)

    def view(self) -> LinkView:
        """Return the links' side of the newest step."""
        results = self.simulator.results
        return LinkView(
            results[:, col.CAPACITY], results[:, col.USED], self.mean_rate, self.base_rtt
        )

    def windows(self) -> Floats:
        """Return the agents' windows, packets; of paced ones rate * RTT, 0 at the least rate."""
        cwnd, pacing = self.held()
        paced = np.where(pacing > self.actions.least_rate, pacing * self.base_rtt, 0.0)
        return np.where(pacing > 0, paced, cwnd)

    def labels(self) -> NDArray[Any]:
        """Return the oracle's actions at this moment, ``[N]``."""
        best = self.simulator.results[:, col.BEST_CWND]
        return self.actions.label(best, *self.held(), self.base_rtt)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint."""
        return {
            "simulator": self.simulator.state_dict(),
            "observations": self.observations.state_dict(),
            "previous": self._previous.copy(),
            "mean_rate": self.mean_rate.copy(),
            "base_rtt": self.base_rtt.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of a batch of the same size and configuration."""
        self.simulator.load_state_dict(state["simulator"])
        self.observations.load_state_dict(state["observations"])
        self._previous = np.array(state["previous"], float)
        self.mean_rate = np.array(state["mean_rate"], float)
        self.base_rtt = np.array(state["base_rtt"], float)
