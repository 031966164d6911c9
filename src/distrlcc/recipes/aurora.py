"""Aurora's agent, reward and training links.

Jay et al., "A Deep Reinforcement Learning Perspective on Internet Congestion Control", ICML 2019,
with the ranges and settings of its repository PCC-RL.
"""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.config import PPOConfig
from distrlcc.runs.run_config import HeldOutConfig, NetworkConfig, RunConfig


def aurora() -> RunConfig:
    """PPO on the links of the suite ``aurora``, in episodes of 400 monitor intervals."""
    steps = 6_000_000
    return RunConfig(
        recipe="aurora",
        num_envs=128,
        total_steps=steps,
        env=EnvConfig(
            suites=("aurora",),
            observation="aurora",
            action="rate",
            reward=RewardConfig("aurora"),
            step_ms=50.0,  # half the shortest round trip: no interval is longer for it
            interval_rtts=0.5,
            episode_s=1000.0,  # episodes end with their links, after 400 intervals
        ),
        network=NetworkConfig(hidden=(32, 16), activation="tanh"),
        held_out=HeldOutConfig(every=60, links=64, seconds=1000.0),
        ppo=PPOConfig(
            gamma=0.99,
            reward_scale=0.01,
            lr_schedule=((0, 1e-3), (steps, 1e-4)),
            entropy_coeff=0.0,
            minibatch_size=2048,
            num_epochs=4,
        ),
    )
