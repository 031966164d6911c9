"""A command's options for a run beside its configuration; without torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from distrlcc.runs.stopper import Stopper
from distrlcc.runs.trackers import Trackers
from distrlcc.storage import Storage

Watch = Callable[[Stopper], None]
"""Called again and again by the process that began a run; it may ask for the end."""


@dataclass(frozen=True)
class RunOptions:
    """Where a run writes."""

    out: Path | None
    resume: bool = False
    tensorboard: bool = True
    storage: str = ""  # URL of its durable copy; see `distrlcc.storage`
    trackers: Trackers = field(default_factory=Trackers)
    show: bool = True  # whether progress is shown
    watch: Watch = lambda stopper: None

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
    invitation: str = ""  # what to say to the users of the others, once they can join
