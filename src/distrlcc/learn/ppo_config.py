"""PPO's settings, without torch, so that what is wrong is told at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from distrlcc.errors import ConfigError
from distrlcc.learn.schedule import Schedule, check_schedule


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """PPO's settings."""

    gamma: float = 0.95
    """Discount per step."""
    lambda_: float = 0.95
    """Decay of generalised advantage estimation."""
    reward_scale: float = 1.0
    """Factor of the rewards; 1 - gamma brings values, and so their loss, to the rewards' size."""
    use_critic: bool = True
    """Subtract the critic's values and bootstrap from them; False learns from returns alone."""
    use_gae: bool = True
    """False takes plain discounted returns: lambda_ 1."""
    use_vtrace: bool = False
    """Correct advantages and values for what the policy learned since it acted (V-trace)."""
    vtrace_rho: float = 1.0
    """Bound of the ratio, new policy to acting one, that weighs a step."""
    vtrace_c: float = 1.0
    """Bound of the ratio that passes later steps on to earlier ones; vtrace_rho at most."""
    lr: float = 1e-3
    """Adam's learning rate."""
    lr_schedule: Schedule | None = None
    """(environment step, learning rate) points instead of lr."""
    entropy_coeff: float = 0.003
    """Weight of the entropy bonus."""
    entropy_coeff_schedule: Schedule | None = None
    """(environment step, weight) points instead of entropy_coeff."""
    use_kl_loss: bool = False
    """Also penalise the KL divergence from the policy that acted."""
    kl_coeff: float = 0.2
    """First weight of that penalty; it adapts."""
    kl_target: float = 0.01
    """KL aimed at: the weight grows by half above twice this, and halves below half of it."""
    minibatch_size: int = 4096
    """Samples in a minibatch, over all ranks."""
    num_epochs: int = 3
    """Passes over a rollout."""
    shuffle_batch_per_epoch: bool = True
    """Deal rows of samples (with an LSTM: of sequences) anew to the minibatches in each epoch."""
    vf_loss_coeff: float = 0.5
    """Weight of the value loss."""
    vf_clip_param: float = 10.0
    """Bound of one sample's squared value error; beyond it the critic learns nothing from a sample,
    so scale rewards until values are small."""
    clip_param: float = 0.2
    """The paper's epsilon."""
    grad_clip: float = 0.5
    """Largest norm of the gradient; 0 does not clip."""
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and variance 1, over all ranks."""
    normalize_observations: bool = True
    """Scale observations by running moments."""
    rollout_length: int = 64
    """Steps of each environment between two updates."""
    sequence_length: int = 16
    """Steps through which an LSTM's gradient flows."""

    def validate(self) -> None:
        """Check every value.

        Raises:
            ConfigError: If one does not fit.
        """
        for name in ("minibatch_size", "num_epochs", "rollout_length", "sequence_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 1 or more")
        for name in ("gamma", "lambda_"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 0 to 1")
        positive = ("lr", "clip_param", "kl_target", "vf_clip_param", "reward_scale")
        for name in (*positive, "vtrace_rho", "vtrace_c"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected more than 0")
        for name in ("entropy_coeff", "kl_coeff", "vf_loss_coeff", "grad_clip"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 0 or more")
        if self.use_gae and not self.use_critic:
            raise ConfigError("use_gae needs a critic: set use_critic true or use_gae false")
        if not self.vtrace_c <= self.vtrace_rho < math.inf:
            raise ConfigError(
                f"vtrace_c is {self.vtrace_c!r}, vtrace_rho {self.vtrace_rho!r}: expected vtrace_c "
                "to be vtrace_rho or less, and both finite"
            )
        check_schedule("lr_schedule", self.lr_schedule)
        check_schedule("entropy_coeff_schedule", self.entropy_coeff_schedule)
