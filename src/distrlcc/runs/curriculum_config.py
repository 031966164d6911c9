"""Settings of the curriculum."""

from __future__ import annotations

from dataclasses import dataclass, field

from distrlcc.control.schemes import SCHEMES
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.sim.link_family import LinkRanges


@dataclass(frozen=True)
class CurriculumConfig:
    """How links are proposed where the policy trails a baseline; defaults as in Genet's code."""

    baselines: tuple[str, ...] = ("bbr",)
    """Schemes to compare with; of several each link's best counts. ``oracle`` is allowed."""
    every: int = 50
    """Updates between two searches."""
    trials: int = 15
    """Families of links that a search tries; the first ten at random, the others by TPE."""
    links: int = 10
    """Links of each."""
    seconds: float = 10.0
    """Length of their episodes, s."""
    share: float = 0.3
    """Share of the episodes that the newest family gets; all before it share the rest as before."""
    ranges: LinkRanges = field(default_factory=LinkRanges)
    """Where families are searched."""

    def __post_init__(self) -> None:
        valid = [name for name in SCHEMES if name not in ("agent", "fixed")]
        if not self.baselines:
            raise ConfigError(f"baselines is empty; expected some of {', '.join(valid)}")
        for name in self.baselines:
            if name not in valid:
                raise unknown_name("baseline", name, valid)
        for name in ("every", "trials", "links"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not 0.1 <= self.seconds <= 1e5:
            raise ConfigError(f"seconds is {self.seconds}; expected 0.1 to 100000")
        if not 0.0 < self.share < 1.0:
            raise ConfigError(f"share is {self.share}; expected above 0 and below 1")


def check_no_curriculum(curriculum: CurriculumConfig | None, what: str) -> None:
    """Refuse a curriculum where nothing searches for its links.

    Raises:
        ConfigError: There is one.
    """
    if curriculum is not None:
        raise ConfigError(
            f"the section curriculum does not go with {what}; set curriculum=none, or train "
            "decentralized or in one process"
        )
