"""What each process of a run asks of a Ray cluster, and where the processes shall stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distrlcc.errors import ConfigError

Needs = dict[str, float]
"""Amounts by resource: ``CPU``, ``GPU`` and whatever the cluster's machines offer."""


RESERVED = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that have options of their own."""


@dataclass(frozen=True)
class ResourcesConfig:
    """Resources of each process on Ray; of no matter elsewhere."""

    workers: int = 0
    """Workers of an actor-learner run; 0: one for each link."""
    max_workers: int = 0
    """Workers while the cluster has room, as when a machine joins; 0: no more than planned."""
    worker_cpus: float = 0.0
    """Cores of each worker, fractions too; 0: one, or less where the cluster has too few."""
    worker_gpus: float = 0.0
    """GPUs of each worker, fractions too."""
    worker_custom: tuple[str, ...] = ()
    """Other resources of each worker, as ``name=amount``."""
    learner_cpus: float = 0.0
    """Cores of each learner; 0: one, or less where the cluster has too few."""
    learner_gpus: float = 0.0
    """GPUs of each learner."""
    learner_custom: tuple[str, ...] = ()
    """Other resources of each learner, as ``name=amount``."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Few machines or many; STRICT: on one, or each process on another."""

    def __post_init__(self) -> None:
        for name in ("workers", "max_workers"):
            if getattr(self, name) < 0:
                raise ConfigError(f"resources.{name} is {getattr(self, name)}: expected 0 or more")
        for name in ("worker_cpus", "worker_gpus", "learner_cpus", "learner_gpus"):
            if not 0.0 <= getattr(self, name) < 1e6:
                raise ConfigError(f"resources.{name} is {getattr(self, name)}: expected 0 or more")
        if self.learner_gpus > 1.0:
            raise ConfigError(
                f"resources.learner_gpus is {self.learner_gpus}: expected at most 1; a learner "
                "computes on one, so give more learners"
            )
        if self.worker_gpus > 1.0 and self.worker_gpus % 1.0:
            raise ConfigError(
                f"resources.worker_gpus is {self.worker_gpus}: expected a share or a whole number"
            )
        for name in ("worker_custom", "learner_custom"):
            for text in getattr(self, name):
                _amount(f"resources.{name}", text)

    def worker(self, cpus: float) -> Needs:
        """Return what a worker needs, with so many cores where none are named."""
        return _needs(self.worker_cpus or cpus, self.worker_gpus, self.worker_custom)

    def learner(self, cpus: float) -> Needs:
        """Return what a learner needs, with so many cores where none are named."""
        return _needs(self.learner_cpus or cpus, self.learner_gpus, self.learner_custom)


def _needs(cpus: float, gpus: float, custom: tuple[str, ...]) -> Needs:
    needs = {"CPU": cpus, "GPU": gpus, **dict(_amount("", text) for text in custom)}
    return {name: amount for name, amount in needs.items() if amount}


def _amount(key: str, text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = 0.0
    if not name or name in RESERVED or not 0.0 < value < 1e6:
        raise ConfigError(f"{key} has {text!r}: expected name=amount, as in fast_disk=1")
    return name, value


def share_of_cores(free: float, named: float, unnamed: int) -> float:
    """Return the cores of each process that names none: one, or an equal share of what is left.

    Args:
        free: Cores of the cluster that are free.
        named: Cores of the processes that name how many.
        unnamed: Processes that name none.
    """
    if not unnamed:
        return 1.0
    share = (free - named) / unnamed
    # Ray counts in ten-thousandths.
    return 1.0 if share >= 1.0 else max(int(share * 1e3) / 1e3, 0.01)
