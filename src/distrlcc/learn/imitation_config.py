"""Settings of imitation from a data set."""

from __future__ import annotations

from dataclasses import dataclass

from distrlcc.errors import ConfigError
from distrlcc.learn.config import Schedule, check_schedule


@dataclass(frozen=True, slots=True)
class ImitationConfig:
    """How a policy is fitted to an expert's actions."""

    lr: float = 2e-3
    """Adam's learning rate."""
    lr_schedule: Schedule | None = None
    """(epoch, learning rate) points instead of lr; epochs count from 0."""
    l2: float = 1e-4
    """Weight of the squared weights' penalty, in the gradient."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    minibatch_size: int = 4096
    """Steps in a minibatch, over all ranks."""
    sequence_length: int = 16
    """Steps in a row that are drawn together; those through which an LSTM's gradient flows."""
    burn_in: int = 16
    """Steps before a sequence that warm up an LSTM's state and do not count."""
    validation_share: float = 0.1
    """Share of the episodes that are not trained on, but measured after each epoch."""
    normalize_observations: bool = True
    """Scale observations by their moments over the training episodes."""

    def __post_init__(self) -> None:
        for name in ("minibatch_size", "sequence_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 1 or more")
        for name in ("l2", "grad_clip", "burn_in"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 0 or more")
        if not 0.0 < self.lr < float("inf"):
            raise ConfigError(f"lr is {self.lr!r}: expected more than 0")
        if not 0.0 <= self.validation_share <= 0.9:
            raise ConfigError(f"validation_share is {self.validation_share!r}: expected 0 to 0.9")
        if self.minibatch_size < self.sequence_length:
            raise ConfigError(
                f"minibatch_size is {self.minibatch_size}: expected {self.sequence_length} or "
                "more, one sequence (sequence_length)"
            )
        check_schedule("lr_schedule", self.lr_schedule)
