"""The demo's recipe: PPO on random, cellular and dynamic links, for two minutes of one core."""

from distrlcc.env.config import EnvConfig
from distrlcc.learn.config import PPOConfig
from distrlcc.runs.run_config import RunConfig


def quickstart() -> RunConfig:
    """Return the configuration that ``make demo`` trains."""
    return RunConfig(
        recipe="quickstart",
        num_envs=256,
        total_steps=12_000_000,
        max_seconds=165.0,
        env=EnvConfig(
            suites=("random", "cellular", "dynamic"),
            suite_weights=(0.5, 0.35, 0.15),
        ),
        ppo=PPOConfig(reward_scale=0.05),
    )
