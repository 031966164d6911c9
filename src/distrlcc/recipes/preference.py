"""One policy for every taste: the user's preference between throughput and delay is an input.

As MOCC (EuroSys 2022), whose weights of throughput, latency and loss become one number here.
"""

from dataclasses import replace

from distrlcc.env.rewards import RewardConfig
from distrlcc.recipes.quickstart import quickstart
from distrlcc.runs.run_config import RunConfig


def preference() -> RunConfig:
    """Quickstart's links; a price of delay for each episode, 0.5 in the middle as quickstart's."""
    config = quickstart()
    return replace(
        config,
        recipe="preference",
        total_steps=8_000_000,
        max_seconds=0.0,
        env=replace(config.env, reward=RewardConfig(delay_weights=(0.05, 5.0))),
    )
