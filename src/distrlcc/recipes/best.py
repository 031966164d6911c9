"""Ours: the policy to take where a flow is alone, on links that hold still, change, or fade."""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.config import PPOConfig
from distrlcc.runs.run_config import NetworkConfig, RunConfig


def best() -> RunConfig:
    """PPO with an LSTM, which can tell a longer path from a queue by what came before.

    Half of the links change; the price of a window that does not fit makes it follow them fast, and
    small steps keep it there. Discounts reach over some round trips.
    """
    steps = 26_000_000
    return RunConfig(
        recipe="best",
        num_envs=256,
        total_steps=steps,
        env=EnvConfig(
            suites=("random", "cellular", "dynamic"),
            suite_weights=(0.2, 0.3, 0.5),
            observation="scale-free-recent",
            action="fine",
            reward=RewardConfig(delay_weight=0.6, window_weight=1.2),
        ),
        network=NetworkConfig(kind="lstm", hidden=(64, 32)),
        ppo=PPOConfig(
            gamma=0.98,
            lambda_=0.98,
            reward_scale=0.02,
            sequence_length=32,
            lr_schedule=((0, 1e-3), (steps // 2, 1e-3), (steps, 3e-5)),
        ),
    )
