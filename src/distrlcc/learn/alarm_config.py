"""Settings of the collapse alarm, without torch, so that what is wrong is told at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from distrlcc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AlarmConfig:
    """When a policy counts as collapsed, and what is done; of no matter to imitation."""

    entropy_bound: float = 0.02
    """Mean entropy below this is an alarm, nats."""
    silent_share_bound: float = 0.2
    """More than this share of ended episodes with the window at its minimum, nearly throughout, is
    one."""
    act: bool = True
    """Whether an alarm restores the last good state and raises the entropy's weight."""
    patience: int = 3
    """Updates that must show a collapse before an alarm acts; where numbers are not finite it is 1.
    One that shows none begins the count anew; where no episode ended nothing is said of silence."""
    keep_every: int = 20
    """Updates between two copies of the state while no alarm is on. The copy before the newest is
    the good one, since a collapse begins before it is seen."""
    entropy_factor: float = 10.0
    """Factor of `entropy_coeff` right after a restore."""
    entropy_floor: float = 0.003
    """What the factor multiplies where `entropy_coeff` is less."""
    decay_updates: int = 50
    """Updates over which the weight falls back to `entropy_coeff`, linearly."""
    most_restores: int = 3
    """Restores in a run; from then on an alarm only warns."""

    def __post_init__(self) -> None:
        if math.isnan(self.entropy_bound):
            raise ConfigError("alarm.entropy_bound is nan; expected a number of nats")
        if not 0.0 <= self.silent_share_bound <= 1.0:
            raise ConfigError(
                f"alarm.silent_share_bound is {self.silent_share_bound!r}: expected 0 to 1"
            )
        for name, low in (("patience", 1), ("keep_every", 1), ("decay_updates", 1),
                          ("most_restores", 0)):  # fmt: skip
            if getattr(self, name) < low:
                raise ConfigError(f"alarm.{name} is {getattr(self, name)}: expected {low} or more")
        if not 1.0 <= self.entropy_factor <= 1000.0:
            raise ConfigError(
                f"alarm.entropy_factor is {self.entropy_factor!r}: expected 1 to 1000"
            )
        if not 0.0 <= self.entropy_floor <= 1.0:
            raise ConfigError(f"alarm.entropy_floor is {self.entropy_floor!r}: expected 0 to 1")
