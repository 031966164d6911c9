"""DAgger's settings, without torch, so that what is wrong is told at once."""

from __future__ import annotations

from dataclasses import dataclass

from distrlcc.errors import ConfigError
from distrlcc.learn.schedule import Schedule, check_schedule


@dataclass(frozen=True, slots=True)
class DaggerConfig:
    """DAgger's settings."""

    lr: float = 2e-3
    """Adam's learning rate (Indigo: 0.01, for far smaller minibatches' worth of passes)."""
    lr_schedule: Schedule | None = None
    """(environment step, learning rate) points instead of lr."""
    l2: float = 1e-4
    """Weight of the squared weights' penalty, in the gradient."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    minibatch_size: int = 4096
    """Samples in a minibatch, over all ranks."""
    num_epochs: int = 8
    """Passes over all data in a round, at most (Indigo: 50)."""
    min_gain: float = 1e-3
    """A round ends when a pass lowers the mean loss by less than this."""
    expert_rounds: int = 1
    """Rounds in which the expert acts."""
    capacity: int = 500_000
    """Samples kept, over all ranks; when there are more the oldest go."""
    normalize_observations: bool = True
    """Scale observations by running moments."""
    rollout_length: int = 128
    """Steps of each environment in a round."""
    sequence_length: int = 16
    """Steps through which an LSTM's gradient flows."""

    def validate(self) -> None:
        """Check every value.

        Raises:
            ConfigError: If one does not fit.
        """
        for name in (
            "minibatch_size",
            "num_epochs",
            "capacity",
            "rollout_length",
            "sequence_length",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 1 or more")
        for name in ("l2", "grad_clip", "min_gain", "expert_rounds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 0 or more")
        if not self.lr > 0.0:
            raise ConfigError(f"lr is {self.lr!r}: expected more than 0")
        if self.capacity < self.sequence_length:
            raise ConfigError(
                f"capacity is {self.capacity!r}: expected at least one sequence of "
                f"{self.sequence_length} samples"
            )
        check_schedule("lr_schedule", self.lr_schedule)
