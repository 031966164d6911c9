"""Agents that share links: PPO with a price of unequal shares, on shared links beside others."""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.config import PPOConfig
from distrlcc.runs.run_config import HeldOutConfig, NetworkConfig, RunConfig


def fair() -> RunConfig:
    """Up to four agents on a link, with `best`'s observations, actions and network.

    Delay is dear, so that the queue is empty at times and who joins sees the path's true RTT.
    Discounts reach over a second, as shares need that long to become equal. Beside CUBIC they learn
    to tell who fills the queue from their like.
    """
    steps = 12_000_000
    return RunConfig(
        recipe="fair",
        num_envs=256,
        total_steps=steps,
        env=EnvConfig(
            suites=("shared", "shared-rtt", "beside-cubic", "random", "cellular", "dynamic"),
            suite_weights=(0.4, 0.1, 0.2, 0.1, 0.1, 0.1),
            observation="scale-free-recent",
            action="fine",
            reward=RewardConfig(delay_weight=1.5, window_weight=0.5, fairness_weight=0.55),
            episode_s=12.0,
            agents=4,
        ),
        network=NetworkConfig(kind="lstm", hidden=(64, 32)),
        held_out=HeldOutConfig(seconds=12.0),
        ppo=PPOConfig(
            gamma=0.99,
            lambda_=0.97,
            reward_scale=0.01,
            entropy_coeff=0.005,
            sequence_length=32,
            lr_schedule=((0, 1e-3), (7_000_000, 1e-3), (steps, 1e-4)),
        ),
    )
