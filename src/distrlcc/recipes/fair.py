"""Agents that share links: PPO with a fairness term on shared links beside quickstart's."""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.ppo_config import PPOConfig
from distrlcc.runtime.run_config import HeldOutConfig, RunConfig


def fair() -> RunConfig:
    """Up to four agents on a link, for three minutes of one core."""
    return RunConfig(
        recipe="fair",
        num_envs=512,
        total_steps=20_000_000,
        max_seconds=170.0,
        env=EnvConfig(
            suites=("shared", "random", "cellular", "dynamic"),
            suite_weights=(0.7, 0.15, 0.1, 0.05),
            reward=RewardConfig(fairness_weight=0.2),
            episode_s=12.0,
            agents=4,
        ),
        held_out=HeldOutConfig(seconds=12.0),
        ppo=PPOConfig(reward_scale=0.05),
    )
