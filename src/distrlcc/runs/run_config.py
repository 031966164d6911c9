"""A run's whole configuration; a recipe is a file of one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from distrlcc.config import check_fields, check_values, hidden
from distrlcc.env.actions import ACTIONS
from distrlcc.env.config import MAX_ENVS, UNDISTURBED, EnvConfig
from distrlcc.env.rewards import OUTCOMES
from distrlcc.errors import ConfigError, once, unknown_name
from distrlcc.learn import config as learn
from distrlcc.policy.spec import NETWORKS
from distrlcc.sim.suites import pinned_suite
from distrlcc.types import TRUTH

MAX_VALUE = 2**48
"""Greatest seed, number of steps and the like."""
MAX_AMOUNT = 999_999  # most of a resource
_DENSE = "as network.kind=mlp has no recurrent layer"


@dataclass(frozen=True)
class NetworkConfig:
    """The policy's network."""

    kind: str = "mlp"
    """``mlp``: dense layers; ``lstm`` or ``mingru`` (which trains faster): dense layers, and one
    recurrent layer as the last of hidden; or a reference to a `distrlcc.policy.spec.Network`."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer widths."""
    post_hidden: int = 0
    """Width of a dense layer after the recurrent one, whose input and state it reads; 0: none. A
    user's network may read it."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the dense layers."""

    def __post_init__(self) -> None:
        NETWORKS.pin(self, "kind")
        if self.kind == "mlp":
            why = "as it stands behind a recurrent layer; or take network.kind=mingru"
            check_values(self, {"post_hidden": 0}, why, prefix="network.")


def _idle_activation(network: NetworkConfig) -> dict[str, str]:
    """Return why the dense layers' activation has no effect, as `RunConfig.idle` does."""
    bare = network.kind in ("lstm", "mingru") and len(network.hidden) == 1
    why = "as a recurrent layer alone has no dense one"
    return {"network.activation": why} if bare and not network.post_hidden else {}


@dataclass(frozen=True)
class HeldOutConfig:
    """How checkpoints are scored while training: on the validation split of the same suites."""

    every: int = 100
    """Updates between two scorings."""
    links: int = 64
    """Links of one scoring."""
    seconds: float = 10.0
    """Length of its episodes, s."""
    keep: Literal["best", "newest"] = "best"
    """Which weights become the run's policy: those with the greatest reward there, or the newest,
    which act by sampling as in training. The reward then decides nothing."""
    average_steps: int = 0
    """Steps over which weights are averaged, exponentially, before they are scored and kept (Polyak
    averaging); 0: the weights as they are."""

    def __post_init__(self) -> None:
        check_fields(self, "average_steps", 0)
        check_fields(self, "every links", 1)
        check_fields(self, "seconds", 0.05, 1e5)


_OWN_BATCHES = hidden(batch=lambda batch: batch == "shared")


@dataclass(frozen=True)
class DistributedConfig:
    """How several processes train together; not used by a single process."""

    batch: Literal["shared", "per-process"] = "shared"
    """With shared, num_envs, minibatches and DAgger's capacity count for all processes together,
    and any number of them learns the same. With per-process they are each process's own: more
    processes then give an update more to learn from."""
    lr_rule: learn.LRRule = field(default="sqrt", metadata=_OWN_BATCHES)
    """How the learning rate follows the number of processes where batches are each one's own: its
    square root (Adam's rule), ``linear`` (SGD's) or ``none``. A rate that desired_kl sets does
    not."""
    warm_up: int = field(default=10, metadata=_OWN_BATCHES)
    """Updates in which the rate rises so; again when processes join."""
    sync_every: int = 1
    """Minibatches that each process learns from by itself before weights and Adam's moments are
    averaged (local SGD), for slow links; 1: gradients are averaged in each."""
    straggler_share: float = 0.6
    """Share of the other processes whose finished rollouts cut this one's short; 0: never."""
    straggler_minimum: float = 0.25
    """Share of its rollout that a process finishes in any case."""
    straggler_grace: float = 0.1
    """Time given after the others have finished, as a share of the time that they took."""
    sync_check_every: int = 10
    """Updates between two comparisons of all weights' checksums; before saving in any case."""
    timeout_s: float = 8.0
    """Time limit of one exchange, s; the work between two must not take longer either."""

    def __post_init__(self) -> None:
        check_fields(self, "straggler_share straggler_minimum", 0, 1)
        check_fields(self, "straggler_grace", 0)
        check_fields(self, "warm_up sync_every sync_check_every", 1)
        check_fields(self, "timeout_s", 0.5, 3600)


CHANNEL, TORCH_RPC = "channel", "torch-rpc"
"""Engines of actor-learner runs without Ray."""


@dataclass(frozen=True)
class ActorsConfig:
    """The workers of the actor-learner topology; not used by the others."""

    nodes: tuple[tuple[str, ...], ...] = (
        ("0", "1", "2", "3"),
        ("4", "5", "6"),
        ("7", "8"),
        ("9", "10", "11", "12"),
    )
    """For each machine the links of its workers: Indigo's link ids, suites, scenarios or files."""
    envs_per_worker: int = 1
    """Environments that each worker steps."""
    learners: int = 1
    """Processes that learn, each from workers of its own; worker i is learner i mod learners's."""
    segments_per_update: int = 0
    """Segments that an update learns from; 0: one for each planned worker."""
    max_lag: int = 16
    """Updates that the policy that acted may be behind when its segment is used."""
    wait_workers: float = 60.0
    """Time to wait for another worker when none is left, s."""
    engine: str = CHANNEL
    """How workers are called: ``channel``, of our own, or ``torch-rpc``; not used on Ray."""

    def __post_init__(self) -> None:
        if not self.nodes or not any(self.nodes):
            raise ConfigError("nodes is empty: expected a list of links for each machine")
        object.__setattr__(self, "nodes", tuple(tuple(map(pinned_suite, n)) for n in self.nodes))
        check_fields(self, "envs_per_worker learners", 1)
        check_fields(self, "segments_per_update max_lag wait_workers", 0)
        if self.engine not in (engines := (CHANNEL, TORCH_RPC)):
            raise unknown_name("engine", self.engine, engines)
        environments = self.envs_per_worker * len(self.links)
        if environments > MAX_ENVS:
            raise ConfigError(
                f"workers have {environments} environments; expected at most {MAX_ENVS}"
            )

    @property
    def links(self) -> list[str]:
        """Every worker's link, node after node."""
        return [f"indigo/{e}" if e.isdigit() else e for node in self.nodes for e in node]

    def parts(self, *, own: bool) -> list[int]:
        """Return each learner's segments in an update; with ``own`` each has the full count."""
        if own and self.segments_per_update:
            return [self.segments_per_update] * self.learners
        count = self.segments_per_update or len(self.links)
        return [len(range(k, count, self.learners)) for k in range(self.learners)]


Needs = dict[str, float]
"""Amounts by resource: ``CPU``, ``GPU`` and whatever the cluster's machines offer."""
RESERVED = ("CPU", "GPU", "memory", "object_store_memory")  # they have options of their own


@dataclass(frozen=True)
class ResourcesConfig:
    """Resources of each process on Ray; not used elsewhere."""

    workers: int = 0
    """Workers of an actor-learner run; 0: one for each link."""
    max_workers: int = 0
    """Workers while the cluster has room, as when a machine joins; 0: no more than planned."""
    worker_cpus: float = 0.0
    """Cores of each worker, fractions too; 0: one, or less where the cluster has too few."""
    worker_gpus: float = 0.0
    """GPUs of each worker, fractions too."""
    worker_custom: tuple[str, ...] = ()
    """Other resources of each worker, as ``name=amount``."""
    learner_cpus: float = 0.0
    """Cores of each learner; 0: one, or less where the cluster has too few."""
    learner_gpus: float = 0.0
    """GPUs of each learner."""
    learner_custom: tuple[str, ...] = ()
    """Other resources of each learner, as ``name=amount``."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Few machines or many; STRICT: on one, or each process on another."""

    def __post_init__(self) -> None:
        check_fields(self, "workers max_workers", 0)
        check_fields(self, "worker_cpus worker_gpus learner_cpus learner_gpus", 0, MAX_AMOUNT)
        if self.learner_gpus > 1.0:
            raise ConfigError(
                f"learner_gpus is {self.learner_gpus}: expected at most 1; a learner "
                "computes on one, so give more learners"
            )
        if self.worker_gpus > 1.0 and self.worker_gpus % 1.0:
            raise ConfigError(
                f"worker_gpus is {self.worker_gpus}: expected a share or a whole number"
            )
        for name in ("worker_custom", "learner_custom"):
            amounts(name, getattr(self, name))

    def worker(self, cpus: float) -> Needs:
        """Return what a worker needs, with so many cores where none are named."""
        return _needs(self.worker_cpus or cpus, self.worker_gpus, self.worker_custom)

    def learner(self, cpus: float) -> Needs:
        """Return what a learner needs, with so many cores where none are named."""
        return _needs(self.learner_cpus or cpus, self.learner_gpus, self.learner_custom)


def _needs(cpus: float, gpus: float, custom: tuple[str, ...]) -> Needs:
    needs = {"CPU": cpus, "GPU": gpus, **amounts("", custom)}
    return {name: amount for name, amount in needs.items() if amount}


def amounts(key: str, texts: Sequence[str]) -> Needs:
    """Return Ray's own resources of ``NAME=AMOUNT`` each; raises ConfigError, also of one twice."""
    found = [amount(key, text) for text in texts]
    once([name for name, _ in found], f"{key}: ")
    return dict(found)


def amount(key: str, text: str) -> tuple[str, float]:
    """Return name and amount of one of Ray's own resources; raises ConfigError."""
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not name.isidentifier() or name in RESERVED or not 0.0 < value <= MAX_AMOUNT:
        raise ConfigError(
            f"{key} {text!r}: expected NAME=AMOUNT, as fast_disk=1, at most {MAX_AMOUNT}; cores, "
            "GPUs and memory have settings of their own"
        )
    return name, value


@dataclass(frozen=True)
class RunConfig:
    """Everything that shapes a run."""

    recipe: str
    """Name of the recipe that it began from."""
    seed: int = 0
    """Seed of links, actions, weights and minibatches."""
    num_envs: int = 256
    """Environments, N; those of workers that act for a trainer are actors.envs_per_worker."""
    total_steps: int = 10_000_000
    """Environment steps to train for."""
    max_seconds: float = 0.0
    """Stop after this time, s, if the steps are not done by then; 0: no limit."""
    checkpoint_every: int = 50
    """Updates between two checkpoints."""
    start_from: str = ""
    """Policy file whose weights training starts from, on each machine; empty: random ones."""
    learner: str = ""
    """Reference to a `distrlcc.learn.model.Learner` that learns in PPO's place, with the settings
    of the section ppo; empty: ours."""
    env: EnvConfig = field(default_factory=EnvConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    held_out: HeldOutConfig = field(default_factory=HeldOutConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    alarm: learn.AlarmConfig = field(default_factory=learn.AlarmConfig)
    ppo: learn.PPOConfig | None = None
    """Settings of PPO; exactly one learner's section is given."""
    dagger: learn.DaggerConfig | None = None
    """Settings of DAgger."""
    gail: learn.GailConfig | None = None
    """Settings of GAIL, whose generator is PPO with the settings above."""

    EXTENDABLE: ClassVar[tuple[str, ...]] = (
        *("total_steps", "max_seconds", "start_from"),
        *("distributed", "actors", "resources"),
    )
    """Keys that a resumed run may change: when it ends and how processes work together. Its first
    weights are not used any more once there is a checkpoint."""
    command: ClassVar[str] = "train"
    """The command that trains it."""
    unit: ClassVar[str] = "update"
    """What `held_out.every` and the like count."""

    def __post_init__(self) -> None:
        if "/" in self.recipe or not self.recipe.isprintable():
            raise ConfigError(f"recipe is {self.recipe!r}: expected a name, which folders bear")
        self._check_sections()
        self._check_agents()
        check_fields(self, "total_steps checkpoint_every", 1, MAX_VALUE)
        check_fields(self, "max_seconds seed", 0, MAX_VALUE)
        check_fields(self, "num_envs", 1, MAX_ENVS)

    def _check_sections(self) -> None:
        if (self.ppo is None) == (self.dagger is None):
            raise ConfigError("give exactly one of the sections ppo and dagger")
        if self.learner:
            learn.LEARNERS.pin(self, "learner")
            if self.ppo is None or self.gail is not None:
                raise ConfigError("learner needs the section ppo, and none beside it: its settings")
        if self.gail is not None and self.ppo is None:
            raise ConfigError("the section gail needs the section ppo: its generator's settings")
        if self.ppo is None or self.gail is not None:
            check_expert(self.env, "gail" if self.gail is not None else "dagger")

    def _check_agents(self) -> None:
        unit = self.env.unit
        if self.num_envs % unit:
            raise ConfigError(
                f"num_envs is {self.num_envs}; expected a multiple of {unit}, the agents that "
                "share links (env.agents, env.rooms): each environment is an agent"
            )
        if self.gail is not None:
            why = "as GAIL's demonstrations are of one agent on a link; or take ppo without gail"
            check_values(self, {"env.agents": 1}, why)

    def idle(self) -> dict[str, str]:
        """Return why a key, or a section, has no effect because of another section."""
        idle = _idle_activation(self.network)
        idle |= {"alarm": "as DAgger has no alarm"} if self.dagger is not None else {}
        if ACTIONS[self.env.action].kind == "continuous":
            idle["alarm.entropy_bound"] = "as the entropy of continuous actions has no bound"
        section = "ppo" if self.dagger is None else "dagger"
        if self.network.kind == "mlp":
            idle[f"{section}.sequence_length"] = _DENSE
        elif self.ppo is not None and self.ppo.sequence_length > self.ppo.rollout_length:
            idle[f"{section}.sequence_length"] = "as a rollout is shorter (ppo.rollout_length)"
        return idle

    def over(self, update: int, steps: int) -> str:
        """Say why a run that has come so far has nothing left to do; empty while it has."""
        if steps < self.total_steps:
            return ""
        return f"{steps} of {self.total_steps} steps already; go on with --set total_steps=N"

    def scores_at(self, update: int) -> bool:
        """Say whether an update is followed by a scoring."""
        return update % self.held_out.every == 0

    @property
    def section(self) -> learn.PPOConfig | learn.DaggerConfig:
        """The learner's settings."""
        section = self.ppo or self.dagger
        assert section is not None
        return section

    @property
    def rollout_length(self) -> int:
        """Steps of each environment between two updates."""
        return self.section.rollout_length

    @property
    def outcomes(self) -> int:
        """Numbers of a step's outcome that rollouts keep: GAIL's discriminator looks at them."""
        return 0 if self.gail is None else len(OUTCOMES)

    @property
    def truth(self) -> int:
        """Numbers that rollouts keep of what a privileged critic knows."""
        return len(TRUTH) if self.ppo is not None and self.ppo.privileged_critic else 0


@dataclass(frozen=True)
class ImitateConfig:
    """Everything that shapes an imitation run: data set, policy, training and scores."""

    data: str = ""
    """Folder of the data set."""
    data_digest: str = ""
    """SHA-256 of its manifest, so that a resumed run goes on with the same data."""
    seed: int = 0
    """Seed of weights, minibatches and the choice of validation episodes."""
    epochs: int = 10
    """Passes over the training episodes."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """That of the data set; its links' validation split is held out."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    held_out: HeldOutConfig = field(default_factory=lambda: HeldOutConfig(every=1))
    """``every`` counts epochs; the last one is scored in any case."""
    imitation: learn.ImitationConfig = field(default_factory=learn.ImitationConfig)

    EXTENDABLE: ClassVar[tuple[str, ...]] = ("data", "epochs")
    recipe: ClassVar[str] = "imitate"
    command: ClassVar[str] = "imitate"
    unit: ClassVar[str] = "epoch"
    checkpoint_every: ClassVar[int] = 1
    max_seconds: ClassVar[float] = 0.0
    distributed: ClassVar[DistributedConfig] = DistributedConfig(straggler_share=0.0)

    def __post_init__(self) -> None:
        check_fields(self, "epochs", 1, MAX_VALUE)
        check_fields(self, "seed", 0, MAX_VALUE)

    def idle(self) -> dict[str, str]:
        """Return why a key has no effect here, as `RunConfig.idle` does."""
        why = "as the data set is what is learned from, and links are for scores alone"
        names = (*UNDISTURBED, "stagger", "episode_s", "rooms", "world")
        idle = {f"env.{name}": why for name in names}
        idle |= _idle_activation(self.network)
        return idle | ({"imitation.burn_in": _DENSE} if self.network.kind == "mlp" else {})

    def over(self, update: int, steps: int) -> str:
        """Say why a run that has come so far has nothing left to do; empty while it has."""
        if update < self.epochs:
            return ""
        return f"{update} of {self.epochs} epochs already; go on with --epochs N"

    def scores_at(self, update: int) -> bool:
        """Say whether an epoch is followed by a scoring; the last one is in any case."""
        return update % self.held_out.every == 0 or update == self.epochs


def check_expert(env: EnvConfig, what: str) -> None:
    """Raise ConfigError at preferences and delayed actions: an expert has neither."""
    needed = {"reward.delay_weights": (), "action_delay_steps": 0}
    why = f"as the expert of {what} has no preference, and its actions are for now; or take PPO"
    check_values(env, needed, why, prefix="env.")
