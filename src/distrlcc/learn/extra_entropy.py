"""What a recovery adds to the entropy's weight, and how it fades."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from distrlcc.learn.alarm_config import AlarmConfig


@dataclass(frozen=True, slots=True)
class ExtraEntropy:
    """An addition to the weight that falls to 0 linearly."""

    amount: float = 0.0
    """Right after the recovery."""
    until: int = 0
    """Version of the weights from which on nothing is added."""
    updates: int = 1
    """Updates that it lasts."""

    @classmethod
    def after(cls, alarm: AlarmConfig, usual: float, version: int) -> ExtraEntropy:
        """Return the addition for a recovery at a version, given the usual weight."""
        raised = alarm.entropy_factor * max(usual, alarm.entropy_floor)
        return cls(max(raised - usual, 0.0), version + alarm.decay_updates, alarm.decay_updates)

    def at(self, version: int) -> float:
        """Return what is added in the update of a version."""
        return self.amount * max(self.until - version, 0) / self.updates

    def state_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)
