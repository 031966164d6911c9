"""N senders on N emulated links: real packets in real time, with the simulator's scenarios.

Observations, actions and rewards are the simulator's. Scenarios give each link's capacity, base
round trip and oracle's window. The links run in a process of their own, which starts with the first
scenario. Steps of all links end together, and time goes on while a policy thinks: see
`distrlcc.net.worlds.emulated_world`, and for the kernel's TCP `distrlcc.net.worlds.kernel_world`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.batch import AgentBatch, mean_wait
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import LinkView
from distrlcc.errors import CheckpointError, ConfigError
from distrlcc.net.worlds import emulated_world, kernel_world
from distrlcc.net.worlds.emulated_world import StepResult, WorldProcess
from distrlcc.sim.scenario import Scenario
from distrlcc.types import IntervalStats

LATE_SHARE = 0.25  # a step whose action came when more than this share of it was over is late


class EmulatedBatch(AgentBatch):
    """N links with one agent each (flow 0); other flows run their own schemes."""

    resumable = False

    def __init__(self, n: int, config: EnvConfig) -> None:
        """Set up N links; raises KernelError where the kernel's TCP cannot be had."""
        super().__init__(n, config)
        self._module = emulated_world if config.world == "emulated" else kernel_world
        if self._module is kernel_world:
            kernel_world.require_world(n)
        self._best, self._wait = np.ones(n), np.zeros(n)
        self._step_ns = round(config.step_ms * 1e6)
        self.world: WorldProcess | None = None  # the links' process; None before the first `load`
        self.result: StepResult  # the newest step, its lateness included

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, from the next step on; raises ConfigError of an oracle."""
        if any(flow.scheme == "oracle" for flow in scenario.flows):
            raise ConfigError(
                f"{scenario.name} has an oracle's flow, which emulated links cannot have; take "
                "another scheme, or world=simulated"
            )
        if self.world is None:
            self.world = WorldProcess(len(self._best), self._module.__name__)
        self.world.load(n, scenario)
        self._held[:, n] = scenario.flows[0].first_held
        self.begin_agent(n, scenario, self._held[:, n])
        # Our receivers acknowledge every packet, the kernel's every second one.
        link = replace(scenario.link, delayed_acks=self._module is kernel_world)
        self._wait[n] = mean_wait(link, 1.0 / self.mean_rate[n])
        # The best first window, before the process has said anything of this link.
        self._best[n] = self.mean_rate[n] * self.base_rtt[n] + 1.0

    def advance(self) -> None:
        """Send windows and rates, and wait for the step's end; raises LinkError."""
        assert self.world is not None, "load the links first"
        self.result = self.world.step(*self._held, step=self._step_ns)
        self.base_rtt = np.maximum(self.result.truth.base_rtt + self._wait, 1e-4)
        self._best = self.result.truth.best_cwnd

    def stats(self) -> IntervalStats:
        """Return what the agents saw in the newest step, ``[N]``."""
        return self.result.stats

    def view(self) -> LinkView:
        """Return the links' side of the newest step."""
        truth = self.result.truth
        return LinkView(truth.capacity, truth.used, self.mean_rate, self.base_rtt)

    def labels(self) -> NDArray[Any]:
        """Return the oracle's actions at this moment, ``[N]``."""
        return self.actions.label(self.best_cwnd(self._best), *self.held(), self.base_rtt)

    def late(self) -> NDArray[np.bool_]:
        """Return whose newest step was late, ``[N]``: they share a clock, so all or none."""
        return np.full(len(self._best), self.result.action_delay > LATE_SHARE * self._step_ns)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: packets on their way cannot be kept."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse with a `CheckpointError`: see `resumable`."""
        raise CheckpointError(
            "emulated links cannot be resumed, as packets on their way cannot be kept; begin new "
            "episodes instead (reset)"
        )

    def close(self) -> None:
        """End the links' process; the next `load` starts another."""
        if self.world is not None:
            self.world.close()
            self.world = None
