"""The paper's inverse reinforcement learning: GAIL with PPO, from the oracle's trajectories."""

from dataclasses import replace

from distrlcc.learn.gail_config import GailConfig
from distrlcc.recipes.quickstart import quickstart
from distrlcc.runtime.run_config import RunConfig


def gail() -> RunConfig:
    """Quickstart's environments and PPO; the reward is the discriminator's, and chooses nothing.

    Demonstrations: ``distrlcc collect --scheme oracle --disturb 0 --out DATA``.
    """
    config = quickstart()
    return replace(
        config,
        recipe="gail",
        max_seconds=0.0,
        held_out=replace(config.held_out, keep="newest"),
        gail=GailConfig(),
    )
