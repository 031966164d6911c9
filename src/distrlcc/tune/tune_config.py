"""Everything that shapes a tuner, kept as ``config.toml`` beside its results."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from distrlcc.config import check_fields
from distrlcc.errors import ConfigError
from distrlcc.plugins import Registry, function
from distrlcc.runs.run_config import RunConfig


class Explorer(Protocol):
    """A function that has the last word on the values that a member goes on with."""

    def __call__(self, values: dict[str, Any], /) -> dict[str, Any]:
        """Return values of the same keys, dotted as in ``ppo.lr``, that the configuration takes.

        ``values`` are perturbed, and within their bounds. Draws come from Python's ``random``,
        which the tuner seeds.
        """


class StopRule(Protocol):
    """A function that ends members before their updates are done."""

    def __call__(self, report: Any, /) -> bool:
        """Say whether a member has trained enough, by its `distrlcc.tune.report.Report` alone."""


EXPLORERS: Registry[Explorer] = Registry("explorer", {}, function)
"""Users' functions alone."""
STOPPERS: Registry[StopRule] = Registry("stopper", {}, function)
"""Users' functions alone."""

Metric = Literal["reward", "utilisation", "queueing_delay", "loss"]
"""Score that compares members: a mean over held-out links."""
TimeAttr = Literal["update", "steps", "training_iteration", "time_total_s"]
"""What Ray Tune measures a member's progress by; ``training_iteration`` counts reports."""
Sampler = Literal["tpe", "random", "cmaes", "gp", "qmc", "nsga2", "nsga3"]


@dataclass(frozen=True)
class PBTConfig:
    """Ray Tune's ``PopulationBasedTraining``, parameter by parameter."""

    population: int = 8
    """Members."""
    interval: float = 20.0
    """``perturbation_interval``: between two looks at a member, in `time_attr`."""
    time_attr: TimeAttr = "update"
    burn_in: float = 0.0
    """``burn_in_period``: before the first look, in `time_attr`."""
    quantile: float = 0.25
    """``quantile_fraction``: share of the worst, which copy as many of the best."""
    resample: float = 0.25
    """``resample_probability``: of drawing a value anew instead of perturbing it."""
    factors: tuple[float, float] = (1.2, 0.8)
    """``perturbation_factors``: one of them is multiplied with a number."""
    explore: str = ""
    """``custom_explore_fn``: a reference, see `EXPLORERS`."""
    log_config: bool = True
    """Write Ray's ``pbt_global.txt``, too."""
    synch: bool = False
    """Look at all members at the same time, as determinism needs."""

    def __post_init__(self) -> None:
        if self.explore:
            EXPLORERS.pin(self, "explore")
        check_fields(self, "population", 2)
        check_fields(self, "quantile", 0.0, 0.5)
        check_fields(self, "resample", 0.0, 1.0)
        check_fields(self, "burn_in", 0.0)
        check_fields(self, "interval", 0, above=True)
        if not all(0.0 < factor < math.inf for factor in self.factors):
            raise ConfigError(f"factors is {self.factors}: expected two numbers above 0")


@dataclass(frozen=True)
class SearchConfig:
    """Optuna's sampler and ASHA."""

    trials: int = 16
    sampler: Sampler = "tpe"
    asha: bool = True
    """Stop bad trials early (asynchronous successive halving); False runs all to the end."""
    grace: int = 40
    """Updates that every trial has."""
    reduction: float = 3.0
    """At each rung one of so many trials goes on."""
    brackets: int = 1
    concurrent: int = 0
    """Trials at the same time; 0: as many as there are cores for."""

    def __post_init__(self) -> None:
        check_fields(self, "trials grace brackets", 1)
        check_fields(self, "concurrent", 0)
        check_fields(self, "reduction", 1, above=True)


@dataclass(frozen=True)
class TuneConfig:
    """A tuner."""

    run: RunConfig
    """The run of each member; its ``total_steps`` are one member's."""
    space: tuple[str, ...]
    """``KEY=DISTRIBUTION`` each."""
    storage: str = ""
    """Folder or URL that members' checkpoints go to; empty: ``checkpoints`` beside this."""
    name: str = "members"
    """Their folder in it."""
    report_every: int = 20
    """Updates between two reports of a member, each with a score and a checkpoint."""
    metric: Metric = "reward"
    mode: Literal["max", "min"] = "max"
    cpus_per_trial: float = 1.0
    """Cores of one member; may be a fraction."""
    keep: int = 4
    """Checkpoints kept of each member."""
    failures: int = 2
    """Times that a member that failed is started again from its last checkpoint."""
    stop: str = ""
    """Rule that ends a member before its updates are done: a reference (`STOPPERS`), or empty."""
    pbt: PBTConfig | None = None
    search: SearchConfig | None = None
    """Exactly one of the two."""

    def __post_init__(self) -> None:
        if (self.pbt is None) == (self.search is None):
            raise ConfigError("give exactly one of the sections pbt and search")
        if self.stop:
            STOPPERS.pin(self, "stop")
        check_fields(self, "report_every keep", 1)
        check_fields(self, "failures", 0)
        check_fields(self, "cpus_per_trial", 0.01, 1e4)
        if self.updates < self.report_every:
            raise ConfigError(
                f"a member has {self.updates} updates and would report after {self.report_every}; "
                "expected at least one report: raise --updates or lower --report-every"
            )

    @property
    def command(self) -> str:
        """The command that it is of, as ``tune pbt``."""
        return "tune search" if self.pbt is None else "tune pbt"

    @property
    def flag(self) -> str:
        """The command's argument that a key and its distribution come from."""
        return "--search" if self.pbt is None else "--mutate"

    @property
    def members(self) -> int:
        """Number of members or trials."""
        return self.pbt.population if self.pbt else self.search.trials if self.search else 0

    @property
    def updates(self) -> int:
        """Updates of one member with the recipe's environments and rollouts."""
        return -(-self.run.total_steps // steps_per_update(self.run))


def steps_per_update(config: RunConfig) -> int:
    """Return the environment steps of one update."""
    return config.num_envs * config.rollout_length
