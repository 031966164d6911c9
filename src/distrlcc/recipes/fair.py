"""Agents that share links: PPO with a fairness term on shared links beside quickstart's."""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.ppo_config import PPOConfig
from distrlcc.runtime.run_config import HeldOutConfig, RunConfig


def fair() -> RunConfig:
    """Up to four agents on a link, some beside CUBIC, for three minutes of one core.

    Rows are many, since on most links not all four agents run at once, and those of the others are
    stepped in vain.
    """
    steps = 6_000_000
    return RunConfig(
        recipe="fair",
        num_envs=1024,
        total_steps=steps,
        max_seconds=240.0,
        env=EnvConfig(
            suites=("shared", "beside-cubic", "random", "cellular", "dynamic"),
            suite_weights=(0.65, 0.12, 0.05, 0.12, 0.06),
            reward=RewardConfig(delay_weight=0.8, fairness_weight=0.2),
            episode_s=12.0,
            agents=4,
        ),
        held_out=HeldOutConfig(seconds=12.0),
        ppo=PPOConfig(
            reward_scale=0.05,
            lr_schedule=((0, 1e-3), (steps // 2, 1e-3), (steps, 1e-4)),
            rollout_length=32,
        ),
    )
