"""Where a process stands in a run of several."""

from dataclasses import dataclass


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
