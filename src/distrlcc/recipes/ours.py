"""Our own recipes, from the demo's to the policies to take."""

from dataclasses import replace

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.config import DaggerConfig, PPOConfig
from distrlcc.runs.run_config import HeldOutConfig, NetworkConfig, RunConfig


def quickstart() -> RunConfig:
    """PPO on random, cellular and dynamic links, for two minutes of one core: ``make demo``."""
    return RunConfig(
        recipe="quickstart",
        num_envs=256,
        total_steps=12_000_000,
        max_seconds=165.0,
        env=EnvConfig(suites=("random", "cellular", "dynamic"), suite_weights=(0.5, 0.35, 0.15)),
        ppo=PPOConfig(reward_scale=0.05),
    )


def imitation() -> RunConfig:
    """Imitation of the oracle: DAgger with the default features and actions."""
    return RunConfig(
        recipe="imitation",
        num_envs=512,
        total_steps=8_000_000,
        max_seconds=165.0,
        env=EnvConfig(suites=("random", "cellular", "dynamic"), suite_weights=(0.5, 0.35, 0.15)),
        held_out=HeldOutConfig(every=20),
        dagger=DaggerConfig(num_epochs=1, capacity=400_000, minibatch_size=8192),
    )


def preference() -> RunConfig:
    """One policy for every taste: the preference between throughput and delay is an input.

    As MOCC (EuroSys 2022), whose weights of throughput, latency and loss become one number here: a
    price of delay for each episode, 0.5 in the middle as quickstart's.
    """
    config = quickstart()
    return replace(
        config,
        recipe="preference",
        total_steps=8_000_000,
        max_seconds=0.0,
        env=replace(config.env, reward=RewardConfig(delay_weights=(0.05, 5.0))),
    )


def best() -> RunConfig:
    """The policy to take where a flow is alone, on links that hold still, change, or fade.

    PPO with an LSTM, which can tell a longer path from a queue by what came before. Half of the
    links change; the price of a window that does not fit makes it follow them fast, and small steps
    keep it there. Discounts reach over some round trips.
    """
    steps = 26_000_000
    rates = ((0, 1e-3), (steps // 2, 1e-3), (steps, 3e-5))
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
            gamma=0.98, lambda_=0.98, reward_scale=0.02, sequence_length=32, lr_schedule=rates
        ),
    )


def fair() -> RunConfig:
    """Agents that share links: up to four, with `best`'s observations, actions and network.

    Delay is dear, so that the queue is empty at times and a flow that joins sees the path's true
    RTT. Discounts reach over a second, as shares need that long to become equal. Beside CUBIC they
    learn to tell flows that fill the queue from their like.
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
