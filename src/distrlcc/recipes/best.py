"""Ours: the policy to take where a flow is alone and its packets shall wait as little as can be."""

from dataclasses import replace

from distrlcc.recipes.quickstart import quickstart
from distrlcc.runtime.run_config import RunConfig


def best() -> RunConfig:
    """Quickstart's links and agent, trained to the end, at a higher price of delay."""
    config, steps = quickstart(), 12_000_000
    assert config.ppo is not None
    return replace(
        config,
        recipe="best",
        total_steps=steps,
        max_seconds=0.0,
        env=replace(config.env, reward=replace(config.env.reward, delay_weight=0.7)),
        ppo=replace(config.ppo, lr_schedule=((0, 1e-3), (steps // 2, 1e-3), (steps, 1e-4))),
    )
