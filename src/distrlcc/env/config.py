"""The configuration of an environment: its links, observation, actions and reward."""

import select
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from distrlcc.config import RESETS, check_fields, check_types, check_values
from distrlcc.env.actions import ACTIONS
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import RewardConfig
from distrlcc.errors import ConfigError, once
from distrlcc.sim.suites import pinned_suite

LEAST_EMULATED_MS = 2.0
MAX_ENVS = 2**20
MAX_AGENTS = 32  # agents on one link: the simulator looks at all of a link's flows for each event
UNDISTURBED: dict[str, Any] = dict(action_delay_steps=0, jitter_ms=0.0, cuts_per_s=0.0, kernel=0.0)
"""Keys of what stands between agents and links, where nothing does."""


@dataclass(frozen=True)
class EnvConfig:
    """A vector environment."""

    suites: tuple[str, ...] = field(default=("random",), metadata={RESETS: "suite_weights"})
    """Suites that episodes are drawn from; each a name, a reference to a
    `distrlcc.sim.suites.Suite` or its generator, a TOML file or a folder of traces. Set alone on a
    command line they are drawn alike, whatever weights there were."""
    suite_weights: tuple[float, ...] = ()
    """How often each suite is drawn, in proportion; empty: all alike."""
    observation: str = "scale-free"
    """One of `distrlcc.env.observations.OBSERVATIONS`, or a reference to an `Observations`."""
    action: str = "multiplicative"
    """One of `distrlcc.env.actions.ACTIONS`, or a reference to an `Actions`."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    step_ms: float = 10.0
    """Length of a step, ms; the least length when `interval_rtts` is set."""
    interval_rtts: float = 0.0
    """Length of a step in minimum RTTs, as Aurora's monitor intervals; 0: `step_ms` alone."""
    agents: int = 1
    """Agents on each link, K, which share one policy; each is an environment of its own."""
    rooms: tuple[int, ...] = ()
    """For how many agents links have room, in turn; each draws scenarios that fill more than half
    of it. Empty: all for `agents`, and any scenario."""
    pacing: float = 0.0
    """Packets of a window leave at this many windows per smoothed round trip, with a guard at most
    1.05 into a queue without room; 0: as it allows."""
    guard: float = 0.0
    """Share of lost packets from which on CUBIC's rule bounds the windows, half of it in a queue,
    thrice it without (`distrlcc.control.windows`); 0: the policy alone does."""
    outside: bool = False
    """Whether the guard takes over on paths outside of what policies hold, as it does wherever one
    is put to use: nothing is learned there."""
    episode_s: float = 10.0
    """Episodes are truncated after this time, s, or at the scenario's end."""
    stagger: bool = True
    """Whether first episodes start at different ages, so that not all end at once."""
    world: Literal["simulated", "emulated", "kernel"] = "simulated"
    """``emulated``: real packets through emulated links in real time; scores stay simulated.
    ``kernel``: the same, and the agents' flows are the kernel's own TCP; needs root."""
    action_delay_steps: int = 0
    """Actions take effect so many steps later, at most; each episode draws its own delay."""
    jitter_ms: float = 0.0
    """Greatest mean of the host's jitter in measured RTTs, ms; each episode draws its own."""
    cuts_per_s: float = 0.0
    """How often an agent's window is cut at random, to an eighth of it or more, 1/s in the mean; at
    most once a step."""
    kernel: bool | float = 0.0
    """Share of episodes whose agents see and act as in the kernel's TCP; see `Disturbance`."""

    def __post_init__(self) -> None:
        check_types(self)
        # Names that exist.
        OBSERVATIONS.pin(self, "observation")
        ACTIONS.pin(self, "action")
        # Suites and their weights.
        if not self.suites:
            raise ConfigError("suites is empty; expected a tuple of names")
        suites = once(list(map(pinned_suite, self.suites)), "suites: ")
        object.__setattr__(self, "suites", tuple(suites))
        weights = self.weights
        if len(self.suites) != len(weights):
            raise ConfigError(
                f"suite_weights has {len(weights)} entries for {len(self.suites)} suites; "
                "expected one for each, or none: []"
            )
        if not all(0 <= w < float("inf") for w in weights) or sum(weights) <= 0:
            raise ConfigError(f"suite_weights {weights}: expected a positive sum")
        # Numbers.
        check_fields(self, "interval_rtts", 0, 1e5)
        check_fields(self, "episode_s", 0.05, 1e5)
        check_fields(self, "step_ms", 0.1, min(1e5, 1e3 * self.episode_s))  # an episode has one
        check_fields(self, "action_delay_steps", 0, 100)
        check_fields(self, "jitter_ms", 0, 1000)
        check_fields(self, "cuts_per_s", 0, 100)
        check_fields(self, "kernel", 0, 1)
        object.__setattr__(self, "kernel", float(self.kernel))  # true: all episodes
        check_fields(self, "agents", 1, MAX_AGENTS)
        if self.rooms and not 1 <= min(self.rooms) <= max(self.rooms) == self.agents:
            raise ConfigError(
                f"rooms {self.rooms}: expected numbers of 1 to agents ({self.agents}), that among "
                "them, or none: []"
            )
        check_fields(self, "pacing", 0, 16)
        check_fields(self, "guard", 0, 1)
        # What does not go together.
        if self.agents == 1:
            why = "as an agent alone has no share; or set agents, too"
            check_values(self, {"reward.fairness_weight": 0}, why)
        if ACTIONS[self.action].least_rate:
            why = f"as action {self.action} sets rates, not windows"
            check_values(self, {"pacing": 0, "guard": 0, "cuts_per_s": 0}, why)
        if not self.guard:
            rules = {"outside": False, "reward.guard_weight": 0}
            check_values(self, rules, "as it is of the guard's rule; or set guard, too")
        if self.world != "simulated":
            self._check_real()

    def _check_real(self) -> None:
        world = f"world {self.world}"
        if not hasattr(select, "epoll"):
            raise ConfigError(f"{world} needs Linux; take world=simulated here")
        why = (
            "as real links have one agent each, steps that end together, and delays and losses of "
            "their own; or take world=simulated"
        )
        needed = {"agents": 1, "interval_rtts": 0, **UNDISTURBED}
        check_values(self, needed, why, prefix=f"{world}: ")
        check_fields(self, "step_ms", LEAST_EMULATED_MS, 1e5, prefix=f"{world}: ")

    @property
    def unit(self) -> int:
        """Environments that belong together: the agents of a link, or of a turn of `rooms`."""
        return sum(self.rooms) or self.agents

    @property
    def disturbed(self) -> bool:
        """Whether anything stands between the agents and their links."""
        return any(getattr(self, name) for name in UNDISTURBED)

    def undisturbed(self) -> "EnvConfig":
        """Return the same without that, as held-out links are scored."""
        return replace(self, **UNDISTURBED)

    @property
    def weights(self) -> tuple[float, ...]:
        """One weight for each suite."""
        return self.suite_weights or (1.0,) * len(self.suites)
