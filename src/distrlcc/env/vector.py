"""The Gymnasium environments: episodes on links drawn from suites, N in one call (or one).

Autoreset is SAME_STEP: where an episode ended, the observation is the next episode's first and
``info["final_obs"]`` holds the one that ended it. Episodes end by truncation alone, because a link
does not end: bootstrap from ``final_obs``. Infos are dense arrays:

* ``active`` ``[N]``, if links have several agents: whether a row's next action counts. Other rows
  are zeros, are paid nothing and learn nothing.
* ``expert_action`` ``[N]``, on demand: the expert's label for the observation returned, the
  oracle's unless another is named.
* ``outcome`` ``[N, 3]``, on demand: a step's outcome on its link, see
  `distrlcc.env.rewards.outcome`.
* `distrlcc.env.rewards.PARTS`, ``[N]`` each, on demand: parts of the rewards.
* ``cwnd`` ``[N]``: windows, packets; of paced agents rate * base RTT, and 0 at the least rate.
* ``guarded`` ``[N]``, with a guard: where it lowered the window that was chosen.
* ``late`` ``[N]``, on emulated links: whether the step was late, as the action came late.
* ``final_obs`` ``[N, D]``, ``_final_obs`` ``[N]``: where an episode ended.
* ``link_episode``: ``return``, ``utilisation``, ``queueing_delay`` (in base RTTs), ``loss``, each
  ``[N]``, with ``_link_episode`` ``[N]``. (``episode`` is Gymnasium's own wrapper's.)
"""

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from inspect import unwrap
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from distrlcc.config import check_fields, check_shown, check_values, checked_seed, typed
from distrlcc.control.compiled import njit
from distrlcc.env.actions import GREATEST
from distrlcc.env.batch import AgentBatch, DemonstrationBatch, LinkBatch
from distrlcc.env.config import MAX_ENVS, EnvConfig
from distrlcc.env.disturbance import PLACE, Disturbance
from distrlcc.env.drawing import MODES, picture, text
from distrlcc.env.emulated import EmulatedBatch
from distrlcc.env.rewards import RewardConfig, outcome, parts
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.plugins import shaped
from distrlcc.seeding import bits, stream_key, uniform
from distrlcc.sim.families import SPLITS
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import check_agents, load_suite
from distrlcc.types import copy_state, restore_state

BOUND = 1000.0  # observations lie within plus and minus this
Array = NDArray[Any]

_RESET_OPTIONS = ("episode", "reset_mask")
_STATE = "episodes ends time sums"
_MOST_DRAWS = 10_000


@njit
def _add_up(sums: Any, step: Any) -> None:
    """Add a step to the episodes' sums, ``[N, 6]``; queueing delays are in base RTTs."""
    reward, used, capacity, rtt_sum, base_rtt, acked, lost = step
    for n in range(len(sums)):
        s, base = sums[n], base_rtt[n]
        s[0], s[1], s[2] = s[0] + reward[n], s[1] + used[n], s[2] + capacity[n]
        s[3] += max(rtt_sum[n] - acked[n] * base, 0.0) / base
        s[4], s[5] = s[4] + acked[n], s[5] + lost[n]


class LinkVectorEnv(VectorEnv[Array, Array, Array]):
    """N senders: each on its own link, or K on each (`EnvConfig.agents`), row r on link r // K.

    Where K share a link an agent's episode begins when it joins and is truncated when it leaves, or
    when the link's time is over.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [*MODES],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    @typed
    def __init__(
        self,
        num_envs: int = 256,
        config: EnvConfig | None = None,
        *,
        split: str = "train",
        seed: int | None = None,
        first_index: int = 0,
        with_labels: bool = True,
        with_outcomes: bool = False,
        with_truth: bool = False,
        with_parts: bool = False,
        autoreset: bool = True,
        expert: str = "oracle",
        preferences: Array | float | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Set up N environments; the links come with the first reset.

        Args:
            num_envs: Environments, N, one for each agent: a multiple of K.
            config: What the environments are.
            split: Which scenarios of the suites: ``train`` or ``test``.
            seed: Chooses the scenarios, by environment and episode; None draws one.
            first_index: Global index of the first environment, a multiple of K: the same
                environments in one process or in many draw the same scenarios.
            with_labels: Put the expert's labels in ``info["expert_action"]``.
            with_outcomes: Put each step's outcome in ``info["outcome"]``.
            with_truth: Put what a critic may know of the links in ``info["truth"]``.
            with_parts: Put what rewards are made of into ``info``.
            autoreset: Whether an episode's end starts the next one; else call `reset`.
            expert: Whose labels: the oracle's, or those of a scheme, which then drives the links
                itself, so that actions change only what is observed; see `DemonstrationBatch`.
            preferences: Of each link's agents ``[N / K]``, or one of all, 0 to 1, where the reward
                asks for any; else each episode draws its own.
            render_mode: What `render` returns: ``ansi``, lines, or ``rgb_array``, pictures.

        Raises:
            ConfigError: A suite or the expert does not exist, K does not divide N, or an argument
                is of another type or shape.
        """
        self.config = config or EnvConfig()
        self.agents, unit = self.config.agents, self.config.unit
        self.num_envs, self.first_index, self.split = num_envs, first_index, split
        check_fields(self, "num_envs", 1, MAX_ENVS)
        check_fields(self, "first_index", 0)
        if num_envs % unit or first_index % unit:
            raise ConfigError(
                f"{num_envs} environments from number {first_index} on, with links of {unit} "
                f"agents; expected multiples of {unit}"
            )
        # The suites that links are drawn from; none may have more agents than there is room for.
        rooms = np.array(self.config.rooms or (self.agents,))
        self._rooms = np.tile(rooms, num_envs // unit)
        self._first = np.cumsum(self._rooms) - self._rooms
        links, first_link = len(self._rooms), first_index // unit * len(rooms)
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        self._suites = [load_suite(name) for name in self.config.suites]
        edges = np.cumsum(np.array(self.config.weights))
        self._suite_edges = edges / edges[-1]
        self._n_flows = max(suite.most_flows for suite in self._suites)
        for suite in [] if self.config.rooms else self._suites:
            for index in range(suite.held_out if suite.most_flows > 1 else 1):
                check_agents(suite.scenario(split, index), self.agents)
        # The links' batch, and the spaces it makes.
        self._with_labels, self._with_outcomes = with_labels, with_outcomes
        self._with_parts, self._with_truth = with_parts, with_truth
        self.batch = self._build_batch(expert)
        size = self.batch.observation_size
        self.single_observation_space = Box(-BOUND, BOUND, (size,), np.float32)
        actions = self.batch.actions
        self.single_action_space: gymnasium.Space[Any] = (
            Discrete(actions.size)
            if actions.kind == "discrete"
            else Box(-GREATEST, GREATEST, (actions.size,), np.float32)
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        # What names draws, and the episodes' progress.
        self._indices = np.arange(first_link, first_link + links)
        self._link = np.repeat(np.arange(links), self._rooms)
        self._preferences: Array | None = None
        if preferences is not None:
            given = np.asarray(preferences)
            fits = given.dtype.kind in "fiu" and given.shape in ((), (links,))
            if not (fits and ((given >= 0) & (given <= 1)).all()):
                raise ConfigError(
                    f"preferences = {preferences!r:.80}: expected {links} numbers from 0 to 1"
                )
            self._preferences = np.full(links, given)
        if self.config.disturbed:
            self._places = PLACE * (np.arange(num_envs) - self._first[self._link])
            agents = self._indices[self._link] + self._places
            self.batch.disturbance = Disturbance(agents, self.config)
        self._autoreset = autoreset
        mode = AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED
        frames = max(round(1e3 / self.config.step_ms), 1)
        self.metadata = self.metadata | {"autoreset_mode": mode, "render_fps": frames}
        if render_mode is not None and render_mode not in MODES:
            raise unknown_name("render mode", render_mode, MODES)
        self.render_mode = render_mode
        self._shown: list[list[Array]] = [[] for _ in range(num_envs)]
        """Each environment's arguments of `picture`, if there is a render mode."""
        self._seen: Array | None = None  # the newest observation, where links are reset alone
        # Links of seeds of their own are each the first of theirs.
        key = stream_key(secrets.randbits(63) if seed is None else checked_seed(seed), "env")
        self._keys, self._numbers = np.full(links, key), self._indices.copy()
        # Of links; the rest is of agents.
        self._episodes = np.zeros(links, np.int64)
        self._ends, self._time = np.zeros((2, links))
        self._sums = np.zeros((num_envs, 6))
        self._waits = True  # whether only `reset` goes on

    def _build_batch(self, expert: str) -> AgentBatch:
        flows = self._n_flows
        if expert != "oracle":
            why = f"as {expert} drives links of its own; or take the expert oracle"
            check_values(self.config, {"world": "simulated", "agents": 1}, why)
            return DemonstrationBatch(self.num_envs, self.config, scheme=expert, n_flows=flows)
        if self.config.world != "simulated":
            return EmulatedBatch(self.num_envs, self.config)
        rooms, labels = self._rooms, self._with_labels
        return LinkBatch(len(rooms), self.config, rooms=rooms, n_flows=flows, with_labels=labels)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        """Start new episodes everywhere, or on some links.

        Args:
            seed: Starts the sequences of links anew. In a list ``[N]`` each environment has its
                own, and gets the links that an environment alone gets by it. None goes on.
            options: ``episode`` says which of the sequences' links comes first, and
                ``reset_mask`` ``[N]`` which environments begin, where they do not by themselves.

        Raises:
            ConfigError: A seed is not a whole number of 0 or more, or an option does not fit.
        """
        options = options or {}
        for name in options:
            if name not in _RESET_OPTIONS:
                raise unknown_name("option of reset", name, _RESET_OPTIONS)
        which = self._masked(options.get("reset_mask"))
        episode = np.asarray(options.get("episode", 0))
        if episode.dtype.kind not in "iu" or episode.ndim or episode < 0:
            raise ConfigError(f"episode is {episode}: expected a whole number of 0 or more")
        self._seed(seed, which)
        if "episode" in options:
            self._episodes[which] = episode
        self._start(which)
        self._waits = False
        if self.config.stagger and options.get("reset_mask") is None:
            # First episodes are cut at different ages, so that later ones do not end together.
            age = uniform(self._keys, self._numbers, -1)
            self._ends = np.maximum(self._ends * (1.0 - age), self.config.step_ms * 1e-3)
        rows = np.flatnonzero(np.isin(self._link, which))
        observation = self.batch.first_observation(rows)
        if len(rows) < self.num_envs:
            assert self._seen is not None
            begun, observation = observation, self._seen.copy()
            observation[rows] = begun
        self._keep(observation)
        return observation, self._info()

    def _masked(self, mask: Any) -> NDArray[np.int64]:
        """Return the links whose environments are True in a mask, all without one."""
        if mask is None:
            return np.arange(len(self._ends))
        if self._autoreset:
            raise ConfigError(
                "reset_mask: these environments begin again by themselves; leave it out, or make "
                "them with autoreset=False"
            )
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ConfigError(
                f"reset_mask is {mask}: expected {self.num_envs} booleans, one of them True"
            )
        if self._seen is None:
            raise ConfigError("reset_mask: no episode has begun yet; reset all first")
        all_of, any_of = (f.reduceat(mask, self._first) for f in (np.logical_and, np.logical_or))
        if (all_of != any_of).any():
            raise ConfigError("reset_mask: agents of one link begin together; give all of a link")
        return np.flatnonzero(any_of)

    def _seed(self, seed: Any, which: NDArray[np.int64]) -> None:
        """Name the links' draws anew."""
        keys, numbers = self._keys.copy(), self._numbers.copy()
        if not isinstance(seed, list | tuple) and np.ndim(seed) == 0:
            seeded = which if seed is not None else which[:0]
            if seed is not None:
                keys[which] = stream_key(checked_seed(seed), "env")
                numbers[which] = self._indices[which]
        elif len(seed) != self.num_envs:
            raise ConfigError(f"seed is {seed}: expected {self.num_envs}, one for each environment")
        else:
            parts = np.split(np.asarray(seed, object), self._first[1:])
            seeded = np.array([n for n in which if any(s is not None for s in parts[n])], np.int64)
            for n in seeded:  # agents of one link name it together
                own = "+".join(str(checked_seed(s)) for s in parts[n])
                keys[n], numbers[n] = stream_key(own, "env"), 0
        self._keys, self._numbers = keys, numbers
        self._episodes[seeded] = 0

    def _keep(self, observation: Array) -> None:
        if not self._autoreset:
            self._seen = observation.copy()

    def link_names(self) -> list[str]:
        """Return the names of the scenarios that the links are on."""
        return [s.name for s in self._scenarios(np.arange(len(self._ends)), self._episodes - 1)]

    @property
    def over(self) -> NDArray[np.bool_]:
        """Whether each link's time is over, ``[N / K]``; after an autoreset none is."""
        return np.asarray(self._time >= self._ends - 1e-9)

    def _scenarios(self, which: NDArray[np.int64], episodes: NDArray[np.int64]) -> list[Scenario]:
        """Draw the scenarios of some links' episodes, of which ``episodes`` went before."""
        names = self._keys[which], self._numbers[which], episodes
        draws, numbers = uniform(*names, 0), bits(*names, 1) >> np.uint64(33)
        return [
            self._fitting(float(draw), int(number), int(room))
            for draw, number, room in zip(draws, numbers, self._rooms[which], strict=True)
        ]

    def _fitting(self, draw: float, number: int, room: int) -> Scenario:
        """Return a scenario; where rooms differ, the first that fills more than half of one."""
        for attempt in range(_MOST_DRAWS if self.config.rooms else 1):
            # Again by the suites' weights, so that those that fit keep theirs among them.
            place = float(uniform(np.uint64(number), attempt)) if attempt else draw
            suite = self._suites[int(np.searchsorted(self._suite_edges, place, side="right"))]
            scenario = suite.scenario(self.split, number + attempt)
            agents = sum(flow.scheme == "agent" for flow in scenario.flows)
            if not self.config.rooms or room < 2 * agents <= 2 * room:
                check_agents(scenario, room)
                return scenario
        raise ConfigError(
            f"env.rooms: the suites {', '.join(self.config.suites)} have no links of "
            f"{room // 2 + 1} to {room} agents; leave out rooms of {room}"
        )

    def _start(self, which: NDArray[np.int64]) -> None:
        rows = np.flatnonzero(np.isin(self._link, which))
        link = self._link[rows]
        if self.batch.disturbance is not None:
            numbers = self._numbers[link] + self._places[rows]
            self.batch.disturbance.begin(rows, self._keys[link], self._episodes[link], numbers)
        scenarios = self._scenarios(which, self._episodes[which])
        for n, scenario in zip(which, scenarios, strict=True):
            self.batch.load(int(n), scenario)
            self._ends[n] = min(scenario.duration_s, self.config.episode_s)
        if self.batch.preference.size:
            self.batch.preference[rows, 0] = (
                uniform(self._keys[link], self._numbers[link], self._episodes[link], 2)
                if self._preferences is None
                else self._preferences[link]
            )
        self._episodes[which] += 1
        self._time[which] = 0.0
        for row in rows if self.render_mode else ():
            self._shown[row].clear()
        self._sums[rows] = 0.0

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Advance every environment by one step."""
        if self._waits:
            raise ResetNeeded("call reset before step: no episode has begun, or all are over")
        if np.ma.is_masked(actions):  # an array would have what the mask hides
            raise ValueError("actions with masked values; every environment takes one, fill them")
        observation, reward = self.batch.step(self._checked(np.asarray(actions)))
        self.batch.check_schemes()
        stats, view = self.batch.newest, self.batch.newest_view
        self._time += stats.duration[self._first]
        rtts = stats.rtt_sum, view.base_rtt
        step = reward, view.used, view.capacity, *rtts, stats.acked, stats.net_lost
        _add_up(self._sums, step)
        over = self.over
        self._waits = not self._autoreset and bool(over.all())
        truncated = self.batch.acted & (over[self._link] | ~self.batch.active)
        late = self.batch.late()
        info: dict[str, Any] = {} if late is None else {"late": late}
        if self._with_outcomes:
            info["outcome"] = np.stack(outcome(stats, view), axis=1).astype(np.float32)
        if self._with_truth:
            info["truth"] = self.batch.truth.of(view, stats.duration)
        if self._with_parts:
            info |= parts(stats, view)
        if self.render_mode:
            rate, capacity, _, queue, _ = parts(stats, view).values()
            shown = self._time[self._link], capacity, rate, 1e3 * queue * view.base_rtt
            for rows, row in zip(
                self._shown, np.stack([*shown, self.batch.chosen_windows()], 1), strict=True
            ):
                rows.append(row)
        if np.count_nonzero(truncated):  # the fastest that asks whether there is any
            info["final_obs"], info["_final_obs"] = observation.copy(), truncated.copy()
            info["link_episode"], info["_link_episode"] = self._episode(), truncated.copy()
        if self._autoreset and np.count_nonzero(over):
            self._start(np.flatnonzero(over))
            ended = np.flatnonzero(over[self._link])
            observation[ended] = self.batch.first_observation(ended)
        if self.agents > 1:
            observation[~self.batch.active] = 0.0  # those that left: their last is final_obs
            self._sums[~self.batch.active] = 0.0
        info.update(self._info())
        self._keep(observation)
        return observation, reward, np.zeros(self.num_envs, bool), truncated, info

    def _checked(self, actions: Array) -> Array:
        """Return the actions if they lie in the space; continuous ones may lack their last axis."""
        space, shape = self.single_action_space, (self.num_envs,)
        if isinstance(space, Discrete):
            fits = actions.shape == shape and actions.dtype.kind in "iu"
            fits = fits and 0 <= actions.min() <= actions.max() < space.n
        else:
            fits = actions.shape in (shape, (*shape, 1)) and actions.dtype.kind in "fiu"
            fits = fits and bool(np.isfinite(actions).all())
        if not fits:
            raise ValueError(
                f"actions {actions.tolist()!r:.80} of shape {actions.shape} and type "
                f"{actions.dtype} do not fit; expected {self.num_envs} of {space}"
            )
        if isinstance(space, Box) and (np.abs(actions) > GREATEST).any():  # said once
            warnings.warn(f"actions beyond {space} count as its bounds", stacklevel=3)
        return actions.reshape(-1)

    def _episode(self) -> dict[str, Array]:
        total, used, capacity, delay, acked, lost = self._sums.T
        return {
            "return": total.copy(),
            "utilisation": used / np.maximum(capacity, 1e-9),
            "queueing_delay": delay / np.maximum(acked, 1),
            "loss": lost / np.maximum(acked + lost, 1),
        }

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"cwnd": self.batch.chosen_windows()}
        info["at_minimum"] = self.batch.at_minimum()
        if self.config.guard:
            info["guarded"] = self.batch.windows.lowered & self.batch.acted
        if self._with_labels:
            labels = self.batch.labels()
            shape = (self.num_envs, *np.shape(labels)[1:])
            info["expert_action"] = shaped("action", self.config.action, labels, *shape)
        if self.agents > 1:
            info["active"] = self.batch.active.copy()
        return info

    def render(self) -> Any:
        """Return N lines or pictures, as ``render_mode`` says; see `distrlcc.env.drawing`."""
        draw = {"ansi": text, "rgb_array": picture}.get(self.render_mode or "")
        return None if draw is None else tuple(map(draw, self._shown))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, for a checkpoint."""
        disturbance = self.batch.disturbance
        return {
            "batch": self.batch.state_dict(),
            "disturbance": None if disturbance is None else disturbance.state_dict(),
            **copy_state(self, _STATE),
            "key": self._keys.copy(),
            "numbers": self._numbers.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the `state_dict` of an environment of the same size and configuration."""
        self._waits = False
        self.batch.load_state_dict(state["batch"])
        restore_state(self, _STATE, state)
        self._keys[:] = np.asarray(state["key"]).reshape(-1)  # one of all, before some had theirs
        self._numbers = np.array(state.get("numbers", self._indices))
        if self.batch.disturbance is not None:
            numbers = self._numbers[self._link] + self._places
            keys = self._keys[self._link]
            self.batch.disturbance.load_state_dict(state["disturbance"], keys, numbers)

    def close_extras(self, **kwargs: Any) -> None:
        """End the emulated links, if there are any."""
        self.batch.close()


_OPTIONS = tuple(unwrap(LinkVectorEnv.__init__).__kwdefaults__ or ())  # beside `EnvConfig`'s


@typed
def make_vector_env(
    num_envs: int = 256, config: EnvConfig | None = None, **changes: Any
) -> LinkVectorEnv:
    """Return N links as Gymnasium's ``make_vec`` has them: with what rewards are made of in infos.

    ``changes`` are fields of `EnvConfig` to change, such as ``episode_s``, ``reward`` by name, and
    arguments of `LinkVectorEnv`.
    """
    options = {name: changes.pop(name) for name in _OPTIONS if name in changes}
    if isinstance(changes.get("reward"), str):
        changes["reward"] = RewardConfig(changes["reward"])
    known = [field.name for field in fields(EnvConfig)]
    for name in changes:
        if name not in known:
            raise unknown_name("setting", name, [*known, *_OPTIONS])
    config = replace(config or EnvConfig(), **changes)
    check_shown(config)
    if options.get("preferences") is not None and not config.reward.delay_weights:
        raise ConfigError("preferences are for a reward with delay_weights; leave them out")
    return LinkVectorEnv(num_envs, config, **{"with_labels": False, "with_parts": True} | options)


class LinkEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """One link at a time; each reset draws the next link."""

    metadata: dict[str, Any] = {"render_modes": [*MODES]}  # noqa: RUF012

    def __init__(
        self, config: EnvConfig | None = None, *, split: str = "train", **changes: Any
    ) -> None:
        changes = {"stagger": False, "autoreset": False, "with_labels": True} | changes
        self._vector = make_vector_env(1, config, split=split, **changes)
        self.render_mode = self._vector.render_mode
        self.metadata = self.metadata | {"render_fps": self._vector.metadata["render_fps"]}
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode on the next link; a seed starts the sequence of links anew."""
        super().reset(seed=None if seed is None else checked_seed(seed))
        observation, info = self._vector.reset(seed=seed, options=options)
        return observation[0], _first(info)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Advance by one step."""
        observation, reward, _, truncated, info = self._vector.step(np.asarray([action]))
        if truncated[0]:  # the observation is the final one
            info = {k: v for k, v in info.items() if not k.startswith("_") and k != "final_obs"}
        return observation[0], float(reward[0]), False, bool(truncated[0]), _first(info)

    def render(self) -> Any:
        """Return a line or a picture of the link's episode, as ``render_mode`` says."""
        frames = self._vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Give back what the link holds."""
        self._vector.close()


def _first(info: dict[str, Any]) -> dict[str, Any]:
    return {k: _first(v) if isinstance(v, dict) else v[0] for k, v in info.items()}
