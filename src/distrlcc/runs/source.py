"""Where a run's batches come from: the seam, and the environments of this process."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from distrlcc.config import from_dict
from distrlcc.data.manifest import Spaces
from distrlcc.data.reader import StoredData
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError, DatasetError, reading
from distrlcc.learn.collect import Collector, CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import DELAY_WEIGHTS, PREFERENCE, PolicySpec
from distrlcc.runs.run_config import ImitateConfig, RunConfig

Stop = Callable[[int], bool]  # asked with the rows collected so far; True cuts the batch short


class Source(Protocol):
    """Environments, workers or a data set; a subclass may leave methods with a body as they are."""

    spec: PolicySpec

    def next(self, weights: Weights, stop: Stop | None) -> tuple[Any, CollectStats] | None:
        """Return the next batch, which ``stop`` cuts short, and its statistics; None: no more."""

    def nothing(self) -> Any:
        """Return a batch without a row, for an update to which this process adds nothing."""
        return None  # not called where all ranks begin together

    def counts(self) -> list[float]:
        """Return what else is summed over ranks for `metrics`."""
        return []

    def metrics(
        self, stats: CollectStats, seconds: float, counts: Sequence[float]
    ) -> dict[str, Any]:
        """Return the newest batch's metrics, from all ranks' sums and the batch's ``seconds``."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs beside the learner."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on from a run's state, which may lack this part; say if the learner's data fit it."""

    def close(self, update: int) -> Exception | None:
        """Close; return the error that ended batches. A batch after ``update`` does not count."""
        return None


@dataclass(frozen=True)
class Share:
    """The environments that one process owns."""

    first: int  # global index of the first one
    count: int

    @classmethod
    def of(cls, config: RunConfig, slot: int, size: int) -> "Share":
        """Return a slot's share, whole links; slot ≥ ``size``: further ones; ConfigError: none."""
        num_envs, agents = config.num_envs, config.env.unit
        if config.distributed.batch == "per-process":
            return cls(slot * num_envs, num_envs)
        links = num_envs // agents
        if links < size:
            least = "one" if agents == 1 else f"{agents}, one link's agents,"
            raise ConfigError(
                f"num_envs is {num_envs}: expected at least {least} for each of {size}; or set "
                "distributed.batch=per-process, and each has as many"
            )
        if slot >= size:
            count = links // size
            return cls((links + (slot - size) * count) * agents, count * agents)
        first = links * slot // size
        return cls(first * agents, (links * (slot + 1) // size - first) * agents)


class EnvSource(Source):
    """A `Source` that steps environments in this process."""

    def __init__(self, config: RunConfig, share: Share | None = None) -> None:
        """Build a share's environments, all by default; raises ConfigError and TraceError."""
        share = share or Share(0, config.num_envs)
        self._config = config
        self.env = LinkVectorEnv(
            share.count,
            config.env,
            seed=config.seed,
            first_index=share.first,
            with_labels=config.dagger is not None,
            with_outcomes=config.outcomes > 0,
            with_truth=config.truth > 0,
        )
        self.spec = policy_spec(config, self.env)
        self.collector = Collector(self.env, self.spec, config.seed)
        self.rollout = new_rollout(config, self.spec, share.count)
        self._own = CollectStats()

    def next(self, weights: Weights, stop: Stop | None = None) -> tuple[Rollout, CollectStats]:
        """Fill the rollout; see `Collector.collect`."""
        self.collector.set_weights(weights)
        self._own = self.collector.collect(self.rollout, stop)
        return self.rollout, self._own

    def nothing(self) -> Rollout:
        """Return the rollout without a row."""
        self.rollout.steps = 0
        return self.rollout

    def metrics(
        self, stats: CollectStats, seconds: float, counts: Sequence[float]
    ) -> dict[str, Any]:
        """Return means over all ranks, and shares of this process's time."""
        return stats.metrics() | {
            "share_environment": self._own.environment_seconds / seconds,
            "share_inference": self._own.inference_seconds / seconds,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the environments' and the collector's state."""
        return {"collector": self.collector.state_dict(), "env": self.env.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on from a state; on new links if it is of others, or where links are emulated."""
        same = "env" in state and len(state["env"]["sums"]) == self.env.num_envs
        if same and self.env.batch.resumable:
            self.collector.load_state_dict(state["collector"])
            self.env.load_state_dict(state["env"])
        else:
            self.collector.begin_at(state["counters"]["update"] * self._config.rollout_length)
        return same  # a DAgger learner's data are of the environments, too


def spaces_of(env: LinkVectorEnv) -> Spaces:
    """Return what an environment's agents see and do."""
    config, batch, actions = env.config, env.batch, env.batch.actions
    seen = config.observation, batch.observation_size
    return Spaces(*seen, config.action, actions.kind, actions.size)


def policy_spec(config: RunConfig, env: LinkVectorEnv) -> PolicySpec:
    """Return the spec of the policy that a run trains on an environment."""
    return spec_in(spaces_of(env), config)


def spec_in(spaces: Spaces, config: RunConfig | ImitateConfig) -> PolicySpec:
    """Return the spec of a configuration's policy in some spaces."""
    env, parts = config.env, asdict(spaces) | asdict(config.network)
    parts |= {"step_ms": env.step_ms, "interval_rtts": env.interval_rtts or None}
    prices = env.reward.delay_weights
    options = {PREFERENCE: "0.5", DELAY_WEIGHTS: " ".join(map(str, prices))} if prices else {}
    return PolicySpec(**parts, pacing=env.pacing, guard=env.guard, options=options)


def new_rollout(config: RunConfig, spec: PolicySpec, environments: int) -> Rollout:
    """Allocate the rollout that a run's learner learns from."""
    sizes = config.rollout_length, environments, config.section.sequence_length
    return Rollout.allocate(spec, *sizes, outcomes=config.outcomes, truth=config.truth)


def check_data(env: EnvConfig, data: StoredData) -> None:
    """Raise ConfigError if an expert's steps are of another environment, or DatasetError."""
    names = ("observation", "action", "step_ms", "interval_rtts", "pacing", "guard")
    collected = data_env(data, *names)
    for name in names:
        has, expected = getattr(env, name), getattr(collected, name)
        if has != expected:
            raise ConfigError(
                f"env.{name} is {has!r}, the data set was collected with {expected!r}; leave it "
                "so, or collect again"
            )
    size, spaces = LinkBatch(1, env).observation_size, data.manifest.spaces
    if size != spaces.observation_size:
        raise DatasetError(
            f"{data.folder}: its {spaces.observation!r} observations have "
            f"{spaces.observation_size} elements, this distrlcc's have {size}, as env.reward's "
            "delay_weights also say; collect again"
        )


def data_env(data: StoredData, *names: str) -> EnvConfig:
    """Return a data set's environment, or some keys of it alone; raises DatasetError."""
    with reading(DatasetError, f"{data.folder}: its environment does not fit", "; collect again"):
        keys = tomllib.loads(data.manifest.origin.env)
        kept = {name: keys[name] for name in keys if name in names or not names}
        return from_dict(EnvConfig, kept, source="manifest.json")
