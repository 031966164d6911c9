"""GAIL's settings, without torch, so that what is wrong is told at once."""

from __future__ import annotations

from dataclasses import dataclass

from distrlcc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GailConfig:
    """What replaces the environment's reward: how far the policy is from an expert."""

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

    def validate(self) -> None:
        """Check every value.

        Raises:
            ConfigError: If one does not fit.
        """
        for name in ("steps", "minibatch_size", "num_epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected 1 or more")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden is {self.hidden!r}: expected one width or more")
        if not 0.0 < self.lr < float("inf"):
            raise ConfigError(f"lr is {self.lr!r}: expected more than 0")
        if not 0.0 <= self.gradient_penalty < float("inf"):
            raise ConfigError(f"gradient_penalty is {self.gradient_penalty!r}: expected 0 or more")
