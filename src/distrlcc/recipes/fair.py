"""Agents that share links: PPO with a fairness term on shared links beside quickstart's."""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.ppo_config import PPOConfig
from distrlcc.runtime.run_config import HeldOutConfig, RunConfig


def fair() -> RunConfig:
    """Up to four agents on a link, for a minute and a half of one core."""
    steps = 4_000_000
    return RunConfig(
        recipe="fair",
        num_envs=512,
        total_steps=steps,
        env=EnvConfig(
            suites=("shared", "random", "cellular", "dynamic"),
            suite_weights=(0.75, 0.05, 0.13, 0.07),
            reward=RewardConfig(fairness_weight=0.2),
            episode_s=12.0,
            agents=4,
        ),
        held_out=HeldOutConfig(seconds=12.0),
        ppo=PPOConfig(reward_scale=0.05, lr_schedule=((0, 1e-3), (1_500_000, 1e-3), (steps, 1e-4))),
    )
