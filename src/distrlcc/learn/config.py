"""Settings of the learners and of the collapse alarm.

They stand apart from the learners, which import torch: a list of recipes or a run's configuration
must not wait for that.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from operator import not_
from typing import Any, Literal

import numpy as np

from distrlcc.config import check_fields, check_values, hidden
from distrlcc.errors import ConfigError
from distrlcc.plugins import Registry, having

_LEARNER = (
    "update weights load_weights shared_state state_dict load_state_dict undo_update pass_over"
)
LEARNERS: Registry[Any] = Registry("learner", {}, having(_LEARNER, made=False))
"""Users' learners alone: classes like `distrlcc.learn.ppo.PPO`, and made with the same arguments.
Ours are chosen by their sections."""

LRRule = Literal["sqrt", "linear", "none"]  # see `distrlcc.learn.scaling.Scale`
LR_RANGE = 1e-5, 1e-2  # rsl_rl's, of `PPOConfig.desired_kl`
Schedule = tuple[tuple[int, float], ...]
"""Points ``(environment step, value)`` in order: linear between them, constant outside."""


def scheduled(schedule: Schedule | None, step: int, constant: float) -> float:
    """Return a schedule's value at an environment step; ``constant`` where there is no schedule."""
    if not schedule:
        return constant
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(step, steps, values))


def check_schedule(name: str, schedule: Schedule | None) -> None:
    """Check that steps rise from 0 on and values are finite and not negative."""
    if schedule is None:
        return
    steps = [point[0] for point in schedule]
    fine = (
        len(steps) > 0
        and steps[0] >= 0
        and all(a < b for a, b in pairwise(steps))
        and all(math.isfinite(value) and value >= 0 for _, value in schedule)
    )
    if not fine:
        raise ConfigError(
            f"{name} is {schedule!r}: expected one or more (environment step, value) points with "
            "rising steps and finite values of 0 or more"
        )


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """PPO's settings."""

    gamma: float = 0.95
    """Discount per step."""
    lambda_: float = field(default=0.95, metadata=hidden(use_gae=not_))
    """Decay of generalised advantage estimation."""
    reward_scale: float = 1.0
    """Factor of the rewards; 1 - gamma brings values, and so their loss, to the rewards' size."""
    use_critic: bool = True
    """Subtract the critic's values and bootstrap from them; False learns from returns alone."""
    privileged_critic: bool = False
    """Let a second critic, which knows the links, correct the values: there in training alone."""
    use_gae: bool = True
    """False takes plain discounted returns: lambda_ 1."""
    use_vtrace: bool = False
    """Correct advantages and values for what the policy learned since it acted (V-trace)."""
    vtrace_rho: float = field(default=1.0, metadata=hidden(use_vtrace=not_))
    """Bound of the ratio, new policy to acting one, that weighs a step."""
    vtrace_c: float = field(default=1.0, metadata=hidden(use_vtrace=not_))
    """Bound of the ratio that passes later steps on to earlier ones; vtrace_rho at most."""
    lr: float = field(default=1e-3, metadata=hidden(lr_schedule=bool))
    """Adam's learning rate."""
    lr_schedule: Schedule | None = None
    """(environment step, learning rate) points instead of lr."""
    entropy_coeff: float = field(default=0.003, metadata=hidden(entropy_coeff_schedule=bool))
    """Weight of the entropy bonus."""
    entropy_coeff_schedule: Schedule | None = None
    """(environment step, weight) points instead of entropy_coeff."""
    use_kl_loss: bool = False
    """Also penalise the KL divergence from the policy that acted."""
    kl_coeff: float = field(default=0.2, metadata=hidden(use_kl_loss=not_))
    """First weight of that penalty; it adapts."""
    kl_target: float = field(default=0.01, metadata=hidden(use_kl_loss=not_))
    """KL aimed at: the weight grows by half above twice this, and halves below half of it."""
    minibatch_size: int = 4096
    """Samples in a minibatch, over all ranks; or in each one's part, see distributed.batch."""
    num_epochs: int = 3
    """Passes over a rollout."""
    shuffle_batch_per_epoch: bool = True
    """Deal rows of samples (where recurrent: of sequences) anew to minibatches in each epoch."""
    vf_loss_coeff: float = field(default=0.5, metadata=hidden(use_critic=not_))
    """Weight of the value loss."""
    vf_clip_param: float = field(default=10.0, metadata=hidden(use_critic=not_))
    """Bound of one sample's squared value error; beyond it the critic learns nothing from a sample,
    so scale rewards until values are small."""
    clip_param: float = 0.2
    """The paper's epsilon."""
    grad_clip: float | None = 0.5
    """Largest norm of the gradient; 0 and none do not clip."""
    target_kl: float | None = None
    """No further minibatch is learned from in an update once one's KL is above 1.5 times this, as
    in SB3; none: all are."""
    desired_kl: float | None = None
    """The learning rate adapts to this KL in each minibatch, from lr on, as in rsl_rl. It is
    divided by 1.5 above twice this KL, and multiplied by 1.5 below half of it. It stays within 1e-5
    to 1e-2."""
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and variance 1, over all ranks."""
    normalize_observations: bool = True
    """Scale observations by running moments. Scaled or not, they are clipped to ±10."""
    rollout_length: int = 64
    """Steps of each environment between two updates."""
    sequence_length: int = 16
    """Steps through which a recurrent layer's gradient flows."""

    def __post_init__(self) -> None:
        check_fields(self, "minibatch_size num_epochs rollout_length sequence_length", 1)
        check_fields(self, "gamma lambda_", 0, 1)
        above_0 = "lr clip_param kl_target vf_clip_param reward_scale vtrace_rho vtrace_c"
        check_fields(self, f"{above_0} target_kl desired_kl", 0, above=True)
        check_fields(self, "entropy_coeff kl_coeff vf_loss_coeff grad_clip", 0)
        if not self.use_critic:
            needed = {"use_gae": False, "privileged_critic": False}
            check_values(self, needed, "as it needs a critic; or set use_critic true")
        if self.vtrace_c > self.vtrace_rho:
            raise ConfigError(
                f"vtrace_c is {self.vtrace_c!r}, vtrace_rho {self.vtrace_rho!r}: expected vtrace_c "
                "to be vtrace_rho or less"
            )
        if self.desired_kl is not None:
            why = "as the rate adapts to desired_kl; or set that none"
            check_values(self, {"lr_schedule": None}, why)
            check_fields(self, "lr", *LR_RANGE)  # where the rule would take it at once
        check_schedule("lr_schedule", self.lr_schedule)
        check_schedule("entropy_coeff_schedule", self.entropy_coeff_schedule)


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How a policy is fitted to actions of an expert."""

    lr: float = field(default=2e-3, metadata=hidden(lr_schedule=bool))
    """Adam's learning rate (Indigo: 0.01, for far smaller minibatches' worth of passes)."""
    lr_schedule: Schedule | None = None
    """(step, learning rate) points instead of lr; DAgger's are environment steps, cloning's are
    epochs, which count from 0."""
    l2: float = 1e-4
    """Weight of the squared weights' penalty, in the gradient."""
    grad_clip: float | None = 1.0
    """Largest norm of the gradient; 0 and none do not clip."""
    minibatch_size: int = 4096
    """Samples in a minibatch, over all ranks; or in each one's part, see distributed.batch."""
    sequence_length: int = 16
    """Steps in a row that are drawn together, through which a recurrent layer's gradient flows."""
    normalize_observations: bool = True
    """Scale observations by their moments: DAgger's run on, cloning's are of the training
    episodes. Scaled or not, they are clipped to ±10."""

    def __post_init__(self) -> None:
        check_fields(self, "minibatch_size sequence_length", 1)
        check_fields(self, "l2 grad_clip", 0)
        check_fields(self, "lr", 0, above=True)
        check_schedule("lr_schedule", self.lr_schedule)


@dataclass(frozen=True, slots=True)
class DaggerConfig(FitConfig):
    """DAgger's settings."""

    num_epochs: int = 8
    """Passes over all data in a round, at most (Indigo: 50)."""
    min_gain: float = 1e-3
    """A round ends when a pass lowers the mean loss by less than this."""
    expert_rounds: int = 1
    """Rounds in which the expert acts."""
    capacity: int = 500_000
    """Samples kept, over all ranks (see distributed.batch); when there are more the oldest go."""
    rollout_length: int = 128
    """Steps of each environment in a round."""

    def __post_init__(self) -> None:
        FitConfig.__post_init__(self)
        check_fields(self, "num_epochs capacity rollout_length", 1)
        check_fields(self, "min_gain expert_rounds", 0)
        if self.capacity < self.sequence_length:
            raise ConfigError(
                f"capacity is {self.capacity!r}: expected at least one sequence of "
                f"{self.sequence_length} samples"
            )


@dataclass(frozen=True, slots=True)
class ImitationConfig(FitConfig):
    """Behavioural cloning's settings."""

    burn_in: int = 16
    """Steps before a sequence that warm up a recurrent state and do not count."""
    validation_share: float = 0.1
    """Share of the episodes that are not trained on, but measured after each epoch."""

    def __post_init__(self) -> None:
        FitConfig.__post_init__(self)
        check_fields(self, "burn_in", 0)
        check_fields(self, "validation_share", 0, 0.9)
        if self.minibatch_size < self.sequence_length:
            raise ConfigError(
                f"minibatch_size is {self.minibatch_size}: expected {self.sequence_length} or "
                "more, one sequence (sequence_length)"
            )


@dataclass(frozen=True, slots=True)
class GailConfig:
    """A reward in the place of the environment's: how far the policy is from an expert."""

    demonstrations: str = ""
    """Folder of the expert's trajectories, as ``distrlcc collect --disturb 0`` writes them; on each
    machine."""
    steps: int = 500_000
    """Steps of them that are held in memory, from episodes drawn at random."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer widths of the discriminator."""
    lr: float = 3e-4
    """Adam's learning rate for the discriminator."""
    minibatch_size: int = 4096
    """Samples of the policy, and as many of the expert, in a minibatch, over all ranks."""
    num_epochs: int = 3
    """Passes over a rollout."""
    gradient_penalty: float = 0.1
    """Weight of the discriminator's squared deviation from a slope of 1 between both (WGAN-GP); at
    that paper's 10 it hardly tells states apart that matter here."""

    def __post_init__(self) -> None:
        check_fields(self, "steps minibatch_size num_epochs", 1)
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden is {self.hidden!r}: expected one width or more")
        check_fields(self, "gradient_penalty", 0)
        check_fields(self, "lr", 0, above=True)


@dataclass(frozen=True, slots=True)
class AlarmConfig:
    """When a policy counts as collapsed, and what is done; imitation has no alarm."""

    entropy_bound: float = 0.02
    """Mean entropy below this is an alarm, nats."""
    silent_share_bound: float = 0.2
    """More than this share of ended episodes with the window at its minimum, nearly throughout, is
    one. They are judged ten or more at a time."""
    act: bool = True
    """Whether an alarm restores the last good state and raises the entropy's weight."""
    patience: int = field(default=3, metadata=hidden(act=not_))
    """Updates that must show a collapse before an alarm acts; where numbers are not finite it is 1.
    One that shows none begins the count anew; until ten episodes have ended nothing is said of
    silence."""
    keep_every: int = field(default=20, metadata=hidden(act=not_))
    """Updates between two copies of the state while no alarm is on. The copy before the newest is
    the good one, since a collapse begins before it is seen."""
    entropy_factor: float = field(default=10.0, metadata=hidden(act=not_))
    """Factor of `entropy_coeff` right after a restore."""
    entropy_floor: float = field(default=0.003, metadata=hidden(act=not_))
    """Least weight that the factor multiplies, if `entropy_coeff` is less."""
    decay_updates: int = field(default=50, metadata=hidden(act=not_))
    """Updates over which the weight falls back to `entropy_coeff`, linearly."""
    most_restores: int = field(default=3, metadata=hidden(act=not_))
    """Restores in a run; from then on an alarm only warns."""

    def __post_init__(self) -> None:
        if math.isnan(self.entropy_bound):
            raise ConfigError("entropy_bound is nan; expected a number of nats")
        check_fields(self, "silent_share_bound entropy_floor", 0, 1)
        check_fields(self, "patience keep_every decay_updates", 1)
        check_fields(self, "most_restores", 0)
        check_fields(self, "entropy_factor", 1, 1000)
