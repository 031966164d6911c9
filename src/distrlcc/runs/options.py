"""What a command says of a run beside its configuration; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distrlcc.storage import Storage


@dataclass(frozen=True)
class RunOptions:
    """Where a run writes."""

    out: Path | None
    resume: bool = False
    tensorboard: bool = True
    storage: str = ""
    """URL of its durable copy; see `distrlcc.storage`."""

    def place(self, run: str) -> Storage | None:
        """Return the place of a run's processes there; None without a storage or a name."""
        if not self.storage or self.out is None:
            return None
        return Storage(self.storage, self.out.resolve().name, run)


@dataclass(frozen=True)
class GroupOptions:
    """How a run's processes work together; see `RankSpec`."""

    elastic: bool = True
    restarts: int = 0
    gpu: int = -1
    interface: str = ""
    join_seconds: float = 120.0


@dataclass(frozen=True)
class Node:
    """A machine of a run."""

    index: int = 0
    count: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    invitation: str = ""
    """What to say to the users of the others, once they can join."""
