"""Imitation of the oracle: DAgger on scale-free features, and Indigo's own set-up."""

from distrlcc.env.config import EnvConfig
from distrlcc.learn.config import DaggerConfig
from distrlcc.runs.run_config import HeldOutConfig, NetworkConfig, RunConfig


def imitation() -> RunConfig:
    """DAgger with the default features and actions."""
    return RunConfig(
        recipe="imitation",
        num_envs=512,
        total_steps=8_000_000,
        max_seconds=165.0,
        env=EnvConfig(suites=("random", "cellular", "dynamic"), suite_weights=(0.5, 0.35, 0.15)),
        held_out=HeldOutConfig(every=20),
        dagger=DaggerConfig(num_epochs=1, capacity=400_000, minibatch_size=8192),
    )


def indigo() -> RunConfig:
    """Indigo's observation, actions, LSTM and 10 s episodes, on its own links."""
    return RunConfig(
        recipe="indigo",
        num_envs=60,
        total_steps=3_000_000,
        env=EnvConfig(
            suites=("indigo",),
            observation="indigo",
            action="indigo",
            episode_s=10.0,
        ),
        network=NetworkConfig(kind="lstm", hidden=(32,)),
        dagger=DaggerConfig(rollout_length=250, sequence_length=50, minibatch_size=5000),
    )
