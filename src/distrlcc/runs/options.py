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


@dataclass(frozen=True)
class RankSpec:
    """Where a process stands in a run; the same on all ranks except for ``slot`` and ``device``."""

    address: str  # the master's name or address
    port: int  # of the master's tunnel; on loopback, where there is none, of its store
    slot: int  # planned rank, from 0; a rank beyond the plan has ``size`` or more
    size: int  # processes planned
    device: str = "cpu"  # ``cpu`` (gloo) or ``cuda:0`` (NCCL)
    elastic: bool = True  # whether the others go on without members that are gone
    interface: str = ""  # network interface; empty asks the system which one reaches the master
    attempt: int = 0  # how often the whole group was started again
    join_seconds: float = 120.0  # how long to wait for the master and for the others, s
    timeout_seconds: float = 8.0  # time limit of a collective, s
    sync_every: int = 1  # steps that each learner takes by itself between two averages
    gate: str = ""  # name of this machine's tunnel; empty where the whole run is on this machine
    learners: int = 0  # slots that learn, before those of their workers; 0: there are no workers

    @property
    def learner(self) -> int:
        """Slot of the learner that this process is, or that its segments go to."""
        return self.slot % self.learners

    @property
    def team(self) -> str:
        """Prefix of a learner's and its workers' names in the master's store."""
        return f"{self.attempt}/{self.learner}"
