"""N senders on N simulated links, without episodes.

The vector environment adds episodes to it, and evaluation drives it as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import CWND, PACING
from distrlcc.env.agents import AgentBatch, Floats
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import LinkView
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.types import NANOSECONDS, IntervalStats

_OVER = Scenario("over", Link(rate_mbps=1.0), (Flow(stop_s=1e-9),))


class LinkBatch(AgentBatch):
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
        super().__init__(n * config.agents, config)
        self.simulator = Simulator(
            n,
            n_flows,
            with_ewmas=config.observation.startswith("indigo"),
            with_best=with_labels,
            with_histograms=with_histograms,
        )
        self.n_flows = n_flows

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""
        self.simulator.load(n, scenario)
        self.begin_agent(n, scenario, LinkBatch.held(self))

    def retire(self, n: int) -> None:
        """Take no more time for link n, whose scenario is over, than a silent sender does.

        Where steps last round trips, long ones would go on for hundreds of times their scenario
        while short ones end.
        """
        self.load(n, _OVER)

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
        view = LinkView(
            results[:, col.CAPACITY], results[:, col.USED], self.mean_rate, self.base_rtt
        )
        if self.n_flows > 1:
            ran = self.ran()
            view.flows, view.schemes = ran.sum(axis=1), ran[:, 1:].sum(axis=1)
        return view

    def ran(self) -> NDArray[np.bool_]:
        """Return which flows ran in the newest step, ``[links, flows]``."""
        begin, end = self.simulator.links[:, [col.STEP_START, col.NOW]].T[..., None]
        start, stop = (
            self.simulator.flows[:, c].reshape(-1, self.n_flows) for c in (col.START, col.STOP)
        )
        return np.asarray((start < end) & (begin < stop))

    def labels(self) -> NDArray[Any]:
        """Return the oracle's actions at this moment, ``[N]``."""
        best = self.best_cwnd(self.simulator.results[:, col.BEST_CWND])
        return self.actions.label(best, *self.held(), self.base_rtt)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint."""
        return {
            "simulator": self.simulator.state_dict(),
            "observations": self.observations.state_dict(),
            "previous": self._previous.copy(),
            "preference": self.preference.copy(),
            "mean_rate": self.mean_rate.copy(),
            "base_rtt": self.base_rtt.copy(),
            "searched": self._searched.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of a batch of the same size and configuration."""
        self.simulator.load_state_dict(state["simulator"])
        self.observations.load_state_dict(state["observations"])
        self._previous = np.array(state["previous"], float)
        self.preference = np.array(state["preference"], float)
        self.mean_rate = np.array(state["mean_rate"], float)
        self.base_rtt = np.array(state["base_rtt"], float)
        self._searched = np.array(state["searched"], float)
