"""The paper's inverse reinforcement learning: GAIL with PPO, from the oracle's trajectories."""

from dataclasses import replace

from distrlcc.learn.config import GailConfig
from distrlcc.recipes.quickstart import quickstart
from distrlcc.runs.run_config import RunConfig


def gail() -> RunConfig:
    """Quickstart's environments and PPO; the reward is the discriminator's, and chooses nothing.

    Demonstrations: ``distrlcc collect --scheme oracle --disturb 0 --out DATA``. More entropy than
    where the reward stands still, and rates that fall, as the two would else circle each other.
    """
    config, steps = quickstart(), 6_000_000
    assert config.ppo is not None
    return replace(
        config,
        recipe="gail",
        max_seconds=0.0,
        held_out=replace(config.held_out, keep="newest"),
        gail=GailConfig(num_epochs=1),
        total_steps=steps,
        ppo=replace(
            config.ppo,
            entropy_coeff_schedule=((0, 0.01), (steps // 2, 0.01), (steps, 0.001)),
            lr_schedule=((0, 1e-3), (steps // 2, 1e-3), (steps, 1e-4)),
        ),
    )
