"""Agents that share links: PPO with a price of unequal shares, on shared links beside others."""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.ppo_config import PPOConfig
from distrlcc.runtime.run_config import HeldOutConfig, NetworkConfig, RunConfig


def fair() -> RunConfig:
    """Up to four agents on a link, with `best`'s observations, actions and network.

    Delay is dear, so that the queue is empty at times and who joins sees the path's true RTT.
    """
    steps = 8_000_000
    return RunConfig(
        recipe="fair",
        num_envs=256,
        total_steps=steps,
        env=EnvConfig(
            suites=("shared", "random", "cellular", "dynamic"),
            suite_weights=(0.65, 0.15, 0.1, 0.1),
            observation="scale-free-recent",
            action="fine",
            reward=RewardConfig(delay_weight=1.5, window_weight=0.3, fairness_weight=0.5),
            episode_s=12.0,
            agents=4,
        ),
        network=NetworkConfig(kind="lstm"),
        held_out=HeldOutConfig(seconds=12.0),
        ppo=PPOConfig(
            gamma=0.98,
            reward_scale=0.02,
            entropy_coeff=0.005,
            sequence_length=32,
            lr_schedule=((0, 1e-3), (5_000_000, 1e-3), (steps, 1e-4)),
        ),
    )
