"""N senders on N links, without episodes: what they see, do and are paid for.

The vector environment adds episodes to it, and evaluation drives it as it is. `AgentBatch` is what
all worlds have in common; `LinkBatch` is the simulated one. In a `DemonstrationBatch` a scheme
drives the links, and the batch shows what an agent in its place would see and would have to do.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.compiled import njit
from distrlcc.control.state import CWND, MIN_CWND, PACING, SCHEMES, scheme_name
from distrlcc.control.windows import WindowControl
from distrlcc.env.actions import ACTIONS
from distrlcc.env.config import EnvConfig
from distrlcc.env.disturbance import Disturbance
from distrlcc.env.observations import OBSERVATIONS, noise_held
from distrlcc.env.rewards import REWARDS, LinkView, preferred, with_fairness, with_window
from distrlcc.env.truth import Truth
from distrlcc.errors import ConfigError
from distrlcc.plugins import lent, shaped, short
from distrlcc.sim import acks
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import JITTERS, Flow, Link, Scenario
from distrlcc.sim.simulator import BROKEN, Simulator
from distrlcc.sim.suites import mean_rate_mbps, with_scheme
from distrlcc.sim.trace import PACKETS_PER_MBIT
from distrlcc.types import NANOSECONDS, IntervalStats, copy_state, restore_state

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_HELD = slice(CWND, PACING + 1)  # a flow's window and pacing rate, which lie side by side


class AgentBatch(ABC):
    """N agents, K on each link, which are the first of its flows; mostly K is 1."""

    resumable = True  # whether `load_state_dict` goes on where `state_dict` was taken

    def __init__(self, n: int, config: EnvConfig) -> None:
        """Take how many agents there are, and what they see, do and are paid for."""
        self.config = config
        self.observations = lent(config.observation, OBSERVATIONS[config.observation](n))
        self.actions = lent(config.action, ACTIONS[config.action])
        if self.actions.kind == "continuous" and self.actions.size != 1:
            raise ConfigError(f"env.action {config.action}: expected a size of 1 where continuous")
        self._reward = lent(config.reward.name, REWARDS[config.reward.name])
        self.newest = IntervalStats(*np.zeros((len(IntervalStats.names()), n)))
        """Statistics of the newest `step`, ``[N]``."""
        self.newest_view: LinkView  # the links' side of it
        self.active = np.ones(n, bool)
        """Which agents run, ``[N]``, so that their next action counts; of one a link, all."""
        self.acted = self.active  # which agents' actions counted in the newest step, ``[N]``
        self._previous = np.zeros((n, self.actions.size))
        self._held = np.zeros((2, n))
        self.preference = np.zeros((n, 1 if config.reward.delay_weights else 0))
        """Each agent's preference for low delay, 0 to 1; no column if all pay alike."""
        self.disturbance: Disturbance | None = None
        """Between the agents and their links, where the environment has put one."""
        held = noise_held(config.observation) if config.outside else 0.0
        self.windows = WindowControl(n, config.pacing, config.guard, held)
        """Between the agents' choices and what their flows hold."""
        self.mean_rate, self.base_rtt = np.ones((2, n))
        self.truth = Truth(n)
        self._searched = np.zeros(n)  # the links' best constant windows; 0: not searched for

    @property
    def observation_size(self) -> int:
        """Elements of an observation: the space's, the previous action's, the preference."""
        return self.observations.size + self.actions.size + self.preference.shape[1]

    @abstractmethod
    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""

    def held(self) -> tuple[Floats, Floats]:
        """Return the agents' windows, packets, and pacing rates, packets/s, ``[N]``."""
        return self._held[0], self._held[1]

    def hold(self, cwnd: Floats, pacing: Floats) -> None:
        """Take the agents' windows and pacing rates for the next step."""
        self._held[:] = cwnd, pacing

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

    def check_schemes(self) -> None:  # noqa: B027 - only simulated links have users' schemes
        """Raise ConfigError where a user's scheme is `BROKEN`."""

    def close(self) -> None:  # noqa: B027 - most hold nothing open
        """Give back what is held open."""

    def begin_agent(self, n: int, scenario: Scenario, held: Floats, place: int = 0) -> None:
        """Begin agent n's episode on its link, as the flow at ``place``; set it in ``held``."""
        flow, link = scenario.flows[place], scenario.link
        if flow.scheme == "agent":
            if flow.cwnd is None:
                held[0] = self.actions.initial[0]
            if flow.pacing_mbps is None:
                held[1] = self.actions.initial[1]
        self.mean_rate[n] = mean_rate_mbps(scenario) * PACKETS_PER_MBIT
        self._searched[n] = link.best_cwnd or 0.0
        service = 1 / (link.rate_mbps * PACKETS_PER_MBIT) if link.rate_mbps else 0.0
        self.base_rtt[n] = (2 * link.delay_ms + flow.extra_rtt_ms) * 1e-3 + service
        in_kernel = self.disturbance is not None and self.disturbance.in_kernel[n]
        wait = mean_wait(link, 1.0 / self.mean_rate[n])
        self.truth.begin(n, link, self.mean_rate[n] * self.base_rtt[n], wait, in_kernel)
        self.observations.reset(np.array([n]))
        self.windows.reset(np.array([n]))
        self._previous[n] = 0.0

    def best_cwnd(self, carried: Floats) -> Floats:
        """Return the expert's windows, packets ``[N]``: searched for, or ``carried``."""
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
        stats, self.newest_view = self.stats(), self.view()
        self.newest = stats
        # It was chosen now, whenever it takes effect.
        encoded, shape = self.actions.encode(actions), self._previous.shape
        self._previous = shaped("action", self.config.action, encoded, *shape)
        measured = stats
        if self.disturbance is not None:
            measured = self.disturbance.measured(stats, self.active)
        self.windows.observe(measured)
        rows, size = len(self._previous), self.observations.size
        observed = self.observations.observe(measured)
        shaped("observation", self.config.observation, observed, rows, size)
        seen = (observed, self._previous, self.preference)
        return np.concatenate(seen, axis=1).astype(np.float32), self._paid(stats)

    def _act(self, actions: NDArray[Any]) -> None:
        before = self.chosen()
        if self.disturbance is None:
            self.hold(*self.windows.apply(before, self._chosen(actions, before)))
            return
        actions, due = self.disturbance.due(actions)
        chosen = np.where(due, self._chosen(actions, before), before)
        allowed = np.stack(self.windows.apply(before, (chosen[0], chosen[1])))
        self.hold(*self.disturbance.in_force(allowed, np.stack(self.held()), self.active))

    def _chosen(
        self, actions: NDArray[Any], before: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        cwnd, pacing = self.actions.apply(actions, *before)
        for array in (cwnd, pacing):
            shaped("action", self.config.action, array, *before[0].shape)
        return cwnd, pacing

    def _paid(self, stats: IntervalStats) -> Floats:
        view, paid = self.newest_view, self.config.reward
        if self.preference.size:
            reward = preferred(stats, view, paid, self.preference[:, 0])
        else:
            reward = self._reward(stats, view, paid)
            shaped("reward", paid.name, reward, len(self._previous))
        reward = with_fairness(with_window(reward, stats, view, paid), view, paid)
        return reward - paid.guard_weight * self.windows.on

    def chosen(self) -> tuple[Floats, Floats]:
        """Return the windows and rates that the next actions change, ``[N]``: mostly those held."""
        held = self.held()
        return held if self.disturbance is None else self.disturbance.chosen(*held)

    def chosen_windows(self) -> Floats:
        """Return the agents' windows, packets; of rates rate * RTT, 0 at the least rate."""
        cwnd, pacing = self.chosen()
        if self.actions.least_rate == 0.0:
            return cwnd
        return np.where(pacing > self.actions.least_rate, pacing * self.base_rtt, 0.0)

    def at_minimum(self) -> Bools:
        """Return which agents chose the least window, or the least rate, ``[N]``."""
        cwnd, pacing = self.chosen()
        least = self.actions.least_rate
        return np.asarray(pacing <= least if least else cwnd <= MIN_CWND)


def mean_wait(link: Link, spacing: float) -> float:
    """Return what jitter, lateness and ACKs in bunches add to a full link's RTT in the mean, s."""
    wait = 1e-3 * link.ack_tick_ms + (min(spacing, 0.04) if link.delayed_acks else 0.0)
    wait += 1e-3 * link.late_share * link.late_ms
    jitters = (link.ack_jitter_ms, link.ack_jitter_kind), (link.jitter_ms, link.jitter_kind)
    return wait + sum(1e-3 * _mean_jitter(kind, scale, 1e3 * spacing) for scale, kind in jitters)


def _mean_jitter(kind: str, scale: float, spacing: float) -> float:
    """Return how long a jitter holds packets ``spacing`` apart in the mean, all in ms.

    No packet overtakes another, so dense ones wait for the slowest of many: far longer than one
    alone. `bursts` count for half of their mean pause, since a window that fits the link lasts
    through a pause.
    """
    if kind in ("correlated", "bursts"):
        return scale / (2 if kind == "correlated" else 4)
    draws = _in_order(JITTERS.index(kind), round(scale * 1e6), max(round(spacing * 1e6), 1))
    return float(draws) * 1e-6


@njit
def _in_order(kind: int, scale: int, spacing: int) -> Any:
    """Return the mean wait of 1024 packets, ns, none of which overtakes another."""
    newest, total = 0, 0
    for number in range(1024):
        time = number * spacing
        newest = max(newest, time + acks.wait(kind, scale, 0, 0, number, time))
        if number >= 256:
            total += newest - time
    return total / 768


@njit
def _base_rtts(results: Any, flows: Any, wait: Any, base_rtt: Any) -> None:
    """Fill in what flows' round trips would be without a queue, s, ``[links, flows]``."""
    links, count = base_rtt.shape
    for n in range(links):
        for k in range(count):
            extra = flows[n * count + k, col.EXTRA_RTT] / NANOSECONDS
            base_rtt[n, k] = max(results[n, col.BASE_RTT] + wait[n] + extra, 1e-4)


_OVER = Scenario("over", Link(rate_mbps=1.0), (Flow(stop_s=1e-9),))


class LinkBatch(AgentBatch):
    """N simulated links with room for some agents each: rows lie link by link, flow by flow.

    Other flows run their own schemes. Agents may join and leave. An agent's first step is the first
    that begins at or after its flow's start; its last step ends at or after its stop. Rows that are
    not active, and rows beyond a scenario's agents, see zeros and are paid nothing. Their actions
    do nothing.
    """

    def __init__(
        self,
        n: int,
        config: EnvConfig,
        *,
        rooms: NDArray[np.int64] | None = None,
        n_flows: int = 1,
        with_histograms: bool = False,
        with_labels: bool = True,
        joining: bool = False,
    ) -> None:
        """Allocate N links of ``n_flows`` flows, or of K if that is more.

        ``rooms`` says for how many agents each link has room, ``[N]``; None: for K. Where K is
        above 1, or with ``joining``, agents join and leave as their flows do; else the first flow
        is an agent's at all times.
        """
        self.agents = agents = config.agents
        self.rooms = np.full(n, agents) if rooms is None else rooms
        self.first = np.cumsum(self.rooms) - self.rooms  # each link's first row, ``[N]``
        super().__init__(int(self.rooms.sum()), config)
        self.n_flows = max(n_flows, agents)
        kept = {"with_best": with_labels, "with_histograms": with_histograms}
        kept["with_ewmas"] = self.observations.with_ewmas
        self.simulator = Simulator(n, self.n_flows, **kept)
        self.link = np.repeat(np.arange(n), self.rooms)  # each row's link
        rows = np.arange(len(self.link))
        self._flow = self.link * self.n_flows + rows - self.first[self.link]
        self._is_agent = np.ones(len(rows), bool)
        # Delivered packets/s of every flow, smoothed over a round trip: what shares are taken of.
        self._rates = np.zeros((n, self.n_flows))
        self._wait = np.zeros(n)
        self._least_step = np.full(n, round(config.step_ms * 1e6))
        self._share = np.ones(len(rows)) if agents > 1 else None
        self._joining = joining or agents > 1
        self._changing = "previous preference mean_rate base_rtt searched wait"
        if self._joining:
            self._changing += " rates is_agent active acted"

    def _put(self, n: int, scenario: Scenario) -> Scenario:
        if self.disturbance is not None and self.disturbance.in_kernel[self.first[n]]:
            scenario = replace(scenario, link=replace(scenario.link, delayed_acks=True))
        self.simulator.load(n, scenario)
        return scenario

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""
        scenario = self._put(n, scenario)
        count, first, room = len(scenario.flows), int(self.first[n]), int(self.rooms[n])
        control = self.simulator.control[n * self.n_flows :][:room]
        control[count:] = 0.0  # what an earlier scenario left
        for place, held in enumerate(control[:, _HELD]):
            self.begin_agent(first + place, scenario, held, min(place, count - 1))
        self._rates[n] = 0.0
        self._wait[n] = mean_wait(scenario.link, 1.0 / self.mean_rate[first])
        if self._joining:
            rows = slice(first, first + room)
            flags = [flow.scheme == "agent" for flow in scenario.flows[:room]]
            self._is_agent[rows] = flags + [False] * (room - len(flags))
            self._searched[rows] /= count
            self.active[rows] = self._running()[rows]

    def retire(self, n: int) -> None:
        """Take no more time for link n, whose scenario is over, than a silent sender does."""
        # Where steps last round trips, it would go on for hundreds of times its scenario.
        self.load(n, _OVER)

    def held(self) -> tuple[Floats, Floats]:
        """Return the agents' windows, packets, and pacing rates, packets/s, ``[N]``."""
        control = self.simulator.control  # a column first: much faster than both at once
        return control[:, CWND][self._flow], control[:, PACING][self._flow]

    def hold(self, cwnd: Floats, pacing: Floats) -> None:
        """Take the active agents' windows and pacing rates for the next step."""
        control, flows = self.simulator.control, self._flow[self.active]
        control[:, CWND][flows], control[:, PACING][flows] = cwnd[self.active], pacing[self.active]

    def _running(self) -> Bools:
        flows, now = self.simulator.flows[self._flow], self.simulator.links[self.link, col.NOW]
        running = (flows[:, col.START] <= now) & (now < flows[:, col.STOP])
        return np.asarray(self._is_agent & running)

    def advance(self) -> None:
        """Advance every link by its step, with windows and rates as they are."""
        simulator = self.simulator
        simulator.advance(self.step_ns())
        base_rtt = np.empty(self._rates.shape)
        _base_rtts(simulator.results, simulator.flows, self._wait, base_rtt)
        self.base_rtt = base_rtt.reshape(-1)[self._flow]
        if self.agents > 1:
            begin, end = simulator.links[:, [col.STEP_START, col.NOW]].T[..., None]
            duration = (end - begin) / NANOSECONDS
            acked = simulator.flows[:, col.STEP_ACKED].reshape(self._rates.shape)
            self._rates += np.minimum(duration / base_rtt, 1.0) * (acked / duration - self._rates)
            if self.config.reward.fairness_weight:
                self._share = self.share()

    def step_ns(self) -> NDArray[np.int64]:
        """Return each link's next step, ns: `step_ms`, or its agents' least RTT's interval."""
        if not self.config.interval_rtts:
            return self._least_step
        rtts = self.simulator.flows[self._flow, col.MIN_RTT]
        rtts = np.where(self.active & (rtts > 0), rtts, col.FOREVER)
        shortest = np.minimum.reduceat(rtts, self.first)
        intervals = np.where(shortest < col.FOREVER, shortest * self.config.interval_rtts, 0.0)
        return np.asarray(np.maximum(self._least_step, intervals.astype(np.int64)))

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], Floats]:
        """Act, advance one step, and return observations ``[N, D]`` and rewards ``[N]``."""
        observation, reward = super().step(actions)
        if not self._joining:
            return observation, reward
        self.acted = self.active
        self.active = self._running()
        joined = np.flatnonzero(self.active & ~self.acted)
        self.observations.reset(joined)
        self.windows.reset(joined)
        self._previous[joined] = 0.0
        observation[~self.acted] = 0.0
        observation[joined] = self.first_observation(joined)
        return observation, np.where(self.acted, reward, 0.0)

    def stats(self) -> IntervalStats:
        """Return what the agents saw in the newest step, ``[N]``."""
        return self.simulator.stats(self._flow)

    def check_schemes(self) -> None:
        """See `AgentBatch`."""
        for flow in self.simulator.broken():
            scheme = scheme_name(int(self.simulator.flows[flow, col.SCHEME]))
            raise ConfigError(f"scheme {short(scheme)}: {BROKEN}; mend it")

    def view(self) -> LinkView:
        """Return the links' side of the newest step."""
        results = self.simulator.results
        capacity, used = results[:, col.CAPACITY][self.link], results[:, col.USED][self.link]
        view = LinkView(capacity, used, self.mean_rate, self.base_rtt, self._share)
        if self.n_flows > 1:
            ran = self.ran()
            flows = ran.sum(axis=1)
            agents = ran.reshape(-1)[self._flow] & self._is_agent
            schemes = flows - np.add.reduceat(agents, self.first, dtype=int)
            view.flows, view.schemes = flows[self.link], schemes[self.link]
        return view

    def ran(self) -> Bools:
        """Return which flows ran in the newest step, ``[links, flows]``."""
        begin, end = self.simulator.links[:, [col.STEP_START, col.NOW]].T[..., None]
        start, stop = (
            self.simulator.flows[:, c].reshape(-1, self.n_flows) for c in (col.START, col.STOP)
        )
        return np.asarray((start < end) & (begin < stop))

    def share(self) -> Floats:
        """Return what agents deliver over a round trip, relative to an equal share of a link."""
        running = self.ran()
        rates = np.where(running, self._rates, 0.0)
        fair = (rates.sum(axis=1) / np.maximum(running.sum(axis=1), 1))[self.link]
        return np.where(fair > 0, rates.reshape(-1)[self._flow] / np.maximum(fair, 1e-9), 1.0)

    def labels(self) -> NDArray[Any]:
        """Return the oracle's actions at this moment: a fair share of the rate for each agent."""
        best = self.simulator.results[:, col.BEST_CWND][self.link]
        if self.agents > 1:
            best = best * self.base_rtt / self.base_rtt[self.first][self.link]
        return self.actions.label(self.best_cwnd(best), *self.chosen(), self.base_rtt)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint."""
        return {
            "simulator": self.simulator.state_dict(),
            "observations": self.observations.state_dict(),
            "windows": self.windows.state.copy(),
            "truth": self.truth.static.copy(),
            **copy_state(self, self._changing),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a `state_dict` of a batch of the same size and configuration."""
        self.simulator.load_state_dict(state["simulator"])
        self.observations.load_state_dict(state["observations"])
        self.windows.state[:] = state["windows"]
        self.truth.static[:] = state["truth"]
        restore_state(self, self._changing, state)


class DemonstrationBatch(LinkBatch):
    """A `LinkBatch` whose actions do not reach the links; a scheme sends in the agents' place.

    The scheme's acknowledgements fill the observations. So does the window or pacing rate that an
    agent would hold, which follows the actions that are passed to `step`. The label is the action
    that brings it nearest to what the scheme holds at that moment. Errors of coarse actions do not
    add up, since each label starts from where the ones before have led.
    """

    def __init__(self, n: int, config: EnvConfig, *, scheme: str, n_flows: int = 1) -> None:
        """Allocate N links, whose first flow runs a scheme; raises ConfigError if unknown."""
        scheme = SCHEMES.pinned(scheme, without=("agent",))
        super().__init__(n, config, n_flows=n_flows, with_labels=False)
        self.windows = WindowControl(n, 0.0, 0.0)  # the scheme sends, at its own risk
        self._scheme = scheme
        self._changing += " held"

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at link n, at its time zero."""
        super().load(n, scenario)  # for an agent's first window and rate
        self._held[:, n] = [values[n] for values in super().held()]
        self._put(n, with_scheme(scenario, self._scheme))

    held, hold = AgentBatch.held, AgentBatch.hold  # what agents would hold, beside the scheme's

    def stats(self) -> IntervalStats:
        """Return what the flows saw, with the windows and rates that agents would hold."""
        stats = super().stats()
        stats.cwnd, stats.pacing_rate = self._held.copy()
        return stats

    def labels(self) -> NDArray[Any]:
        """Return the actions that follow the scheme, ``[N]``."""
        return self.actions.label(self.target(), *self.chosen(), self._rtt())

    def target(self) -> Floats:
        """Return the windows that the scheme's sending amounts to, packets ``[N]``.

        A paced sender has its rate's worth of a round trip in flight, unless its window is less.
        """
        cwnd, pacing = super().held()
        return np.where(pacing > 0, np.minimum(cwnd, pacing * self._rtt()), cwnd)

    def _rtt(self) -> Floats:
        """Return the newest RTTs, s; before the first sample, those of the empty links."""
        last = super().stats().rtt_last
        return np.where(last > 0, last, self.base_rtt)
