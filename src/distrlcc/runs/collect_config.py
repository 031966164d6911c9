"""What a data set of an expert's trajectories is collected from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError
from distrlcc.runs.run_config import MAX_ENVS, MAX_VALUE, check_one_price, check_prompt_actions


@dataclass(frozen=True)
class CollectConfig:
    """Everything that shapes a data set."""

    scheme: str
    """The expert: ``oracle``, or a scheme that drives the links; of several, with commas between,
    each link has the one with the greatest return there."""
    steps: int = 1_000_000
    """Steps to collect; the last episode is completed. 0: `episodes` says how much."""
    episodes: int = 0
    """Episodes to collect; 0: `steps` says how much."""
    num_envs: int = 256
    """Episodes that run side by side, at most."""
    seed: int = 0
    """Chooses the links."""
    split: Literal["train", "validation", "test"] = "train"
    """Which scenarios of the suites."""
    shard_steps: int = 262_144
    """Steps in a shard, at most; bounds the memory that collecting takes."""
    disturb: float = 0.0
    """Share of steps at which the oracle's action gives way to one drawn at random."""
    env: EnvConfig = field(default_factory=EnvConfig)

    def __post_init__(self) -> None:
        check_one_price(self.env, "collect")
        check_prompt_actions(self.env, "collect")
        if (self.steps == 0) == (self.episodes == 0):
            raise ConfigError("give either steps or episodes")
        for name, low, high in (
            ("steps", 0, MAX_VALUE),
            ("episodes", 0, MAX_VALUE),
            ("num_envs", 1, MAX_ENVS),
            ("seed", 0, MAX_VALUE),
            ("shard_steps", 1, 2**31),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {low} to {high}")

        if self.env.agents > 1:
            raise ConfigError(
                f"env.agents is {self.env.agents}; expected 1: data sets are of one agent on a link"
            )
        if not 0.0 <= self.disturb <= 0.5:
            raise ConfigError(f"disturb is {self.disturb}; expected 0 to 0.5")
        if self.disturb and self.scheme != "oracle":
            raise ConfigError(
                f"disturb is {self.disturb}; expected 0, as {self.scheme} drives the link itself"
            )

    @property
    def schemes(self) -> tuple[str, ...]:
        """The experts that are asked, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.scheme.split(",")))

    @property
    def episode_steps(self) -> int:
        """Steps of an episode, at most."""
        return int(self.env.episode_s * 1e3 / self.env.step_ms) + 1
