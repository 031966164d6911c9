"""A whole imitation run: the data set, the policy, and how it is trained and scored."""

from __future__ import annotations

from dataclasses import dataclass, field

from distrlcc.env.config import EnvConfig
from distrlcc.errors import ConfigError
from distrlcc.learn.imitation_config import ImitationConfig
from distrlcc.runs.run_config import MAX_VALUE, HeldOutConfig, NetworkConfig


@dataclass(frozen=True)
class ImitateConfig:
    """Everything that shapes an imitation run."""

    data: str = ""
    """Folder of the data set."""
    data_digest: str = ""
    """SHA-256 of its manifest, so that a resumed run goes on with the same data."""
    seed: int = 0
    """Seed of weights, minibatches and the choice of validation episodes."""
    epochs: int = 10
    """Passes over the training episodes."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """That of the data set; its links' validation split is held out."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    held_out: HeldOutConfig = field(default_factory=lambda: HeldOutConfig(every=1))
    """``every`` counts epochs; the last one is scored in any case."""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)

    def __post_init__(self) -> None:
        for name, low in (("epochs", 1), ("seed", 0)):
            if not low <= getattr(self, name) <= MAX_VALUE:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {low} to {MAX_VALUE}")


EXTENDABLE = ("data", "epochs")
"""Keys that a resumed run may change: where the same data are, and when it ends."""
