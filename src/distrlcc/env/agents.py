"""What N agents see, do and are paid for, whichever world their links are in.

A world's batch (`LinkBatch`, `EmulatedBatch`) puts scenarios at links and advances them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.actions import ACTIONS
from distrlcc.env.config import EnvConfig
from distrlcc.env.disturbance import Disturbance
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS, LinkView, preferred, with_fairness, with_window
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import mean_rate_mbps
from distrlcc.types import PACKET_BYTES, IntervalStats

Floats = NDArray[np.float64]

_PACKETS_PER_MBIT = 1e6 / (8 * PACKET_BYTES)


class AgentBatch(ABC):
    """N agents, K on each link, which are the first of its flows; mostly K is 1."""

    resumable = True
    """Whether `load_state_dict` goes on where `state_dict` was taken."""

    def __init__(self, n: int, config: EnvConfig) -> None:
        """Take how many agents there are, and what they see, do and are paid for."""
        self.config = config
        self.observations = OBSERVATIONS[config.observation](n)
        self.actions = ACTIONS[config.action]
        self._reward = REWARDS[config.reward.name]
        self.newest = IntervalStats(*np.zeros((len(IntervalStats.names()), n)))
        """What the agents saw in the newest `step`, ``[N]``."""
        self.active = np.ones(n, bool)
        """Which agents run, ``[N]``, so that their next action counts; of one a link, all."""
        self._previous = np.zeros((n, self.actions.size))
        self.preference = np.zeros((n, 1 if config.reward.delay_weights else 0))
        """What each agent is told of its price of delay, 0 to 1; no column where all pay alike."""
        self.disturbance: Disturbance | None = None
        """Between the agents and their links, where the environment has put one."""
        self.mean_rate = np.ones(n)
        self.base_rtt = np.ones(n)
        self._searched = np.zeros(n)  # the links' best constant windows; 0: not searched for

    @property
    def observation_size(self) -> int:
        """Elements of an observation: the space's, the previous action's, the preference."""
        return self.observations.size + self.actions.size + self.preference.shape[1]

    @abstractmethod
    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""

    @abstractmethod
    def held(self) -> tuple[Floats, Floats]:
        """Return views of the agents' windows, packets, and pacing rates, packets/s, ``[N]``."""

    @abstractmethod
    def advance(self) -> None:
        """Advance every link by its step, with windows and rates as they are."""

    @abstractmethod
    def stats(self) -> IntervalStats:
        """Return what the agents saw in the newest step, ``[N]``."""

    @abstractmethod
    def view(self) -> LinkView:
        """Return the links' side of the newest step."""

    @abstractmethod
    def labels(self) -> NDArray[Any]:
        """Return the expert's actions at this moment, ``[N]``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of a batch of the same size and configuration."""

    def retire(self, n: int) -> None:  # noqa: B027 - where time is real nothing is saved
        """Spend no more on link n, whose scenario is over, until the next `load`."""

    def late(self) -> NDArray[np.bool_] | None:
        """Return whose newest step was late, ``[N]``; None where time is not real."""
        return None

    def close(self) -> None:  # noqa: B027 - most hold nothing open
        """Give back what is held open."""

    def begin_agent(
        self, n: int, scenario: Scenario, held: tuple[Floats, Floats], place: int = 0
    ) -> None:
        """Begin an agent's episode, after its link is there.

        Args:
            n: The agent.
            scenario: Its link's scenario.
            held: Views of windows and pacing rates; what the scenario leaves open is set there.
            place: Its place among the scenario's flows.
        """
        flow, link = scenario.flows[place], scenario.link
        cwnd, pacing = held
        if flow.scheme == "agent":
            if flow.cwnd is None:
                cwnd[n] = self.actions.initial[0]
            if flow.pacing_mbps is None:
                pacing[n] = self.actions.initial[1]
        self.mean_rate[n] = mean_rate_mbps(scenario) * _PACKETS_PER_MBIT
        self._searched[n] = link.best_cwnd or 0.0
        service = 0.0 if link.rate_mbps is None else 1 / (link.rate_mbps * _PACKETS_PER_MBIT)
        self.base_rtt[n] = (2 * link.delay_ms + flow.extra_rtt_ms) * 1e-3 + service
        self.observations.reset(np.array([n]))
        self._previous[n] = 0.0

    def best_cwnd(self, carried: Floats) -> Floats:
        """Return what the expert's windows are, packets ``[N]``.

        Args:
            carried: Packets that the links carry in a round trip; what was searched for counts
                before them.
        """
        return np.where(self._searched > 0, self._searched, carried)

    def first_observation(self, which: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the observations of agents that just began: nothing seen yet."""
        unseen = np.zeros((len(which), self.observation_size), np.float32)
        if self.preference.size:
            unseen[:, -1:] = self.preference[which]
        return unseen

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Floats]:
        """Act, advance one step, and return observations ``[N, D]`` and rewards ``[N]``."""
        self._act(actions)
        self.advance()
        self.newest = stats = self.stats()
        self._previous = self.actions.encode(actions)  # chosen now, whenever it takes effect
        measured = stats if self.disturbance is None else self.disturbance.measured(stats)
        seen = (self.observations.observe(measured), self._previous, self.preference)
        return np.concatenate(seen, axis=1).astype(np.float32), self._paid(stats)

    def _act(self, actions: NDArray[Any]) -> None:
        cwnd, pacing = self.held()
        if self.disturbance is None:
            cwnd[:], pacing[:] = self.actions.apply(actions, cwnd, pacing)
            return
        actions, due = self.disturbance.due(actions)
        new_cwnd, new_pacing = self.actions.apply(actions, cwnd, pacing)
        cwnd[:], pacing[:] = np.where(due, new_cwnd, cwnd), np.where(due, new_pacing, pacing)

    def _paid(self, stats: IntervalStats) -> Floats:
        view, paid = self.view(), self.config.reward
        if self.preference.size:
            reward = preferred(stats, view, paid, self.preference[:, 0])
        else:
            reward = self._reward(stats, view, paid)
        return with_fairness(with_window(reward, stats, view, paid), view, paid)

    def windows(self) -> Floats:
        """Return the agents' windows, packets; of paced ones rate * RTT, 0 at the least rate."""
        cwnd, pacing = self.held()
        paced = np.where(pacing > self.actions.least_rate, pacing * self.base_rtt, 0.0)
        return np.where(pacing > 0, paced, cwnd)
