"""Genet's congestion control: Aurora's kind of agent on the widest links, without its curriculum.

Xia et al., "Genet: Automatic Curriculum Generation for Learning Adaptation in Networking",
SIGCOMM 2022.
"""

from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.learn.config import PPOConfig
from distrlcc.runs.run_config import HeldOutConfig, NetworkConfig, RunConfig


def genet() -> RunConfig:
    """Genet's observation, reward, network and PPO, on the widest of its ranges of links."""
    steps = 4_000_000
    return RunConfig(
        recipe="genet",
        num_envs=128,
        total_steps=steps,
        env=EnvConfig(
            suites=("genet",),
            observation="genet",
            action="genet",
            reward=RewardConfig("genet"),
            interval_rtts=1.0,
            episode_s=30.0,
        ),
        network=NetworkConfig(hidden=(32, 16), activation="tanh"),
        held_out=HeldOutConfig(every=60, seconds=30.0),
        ppo=PPOConfig(
            gamma=0.95,  # Genet's 0.99 ended at two thirds of the utilisation
            reward_scale=0.05,
            lr_schedule=((0, 1e-3), (steps, 1e-4)),
            entropy_coeff=0.0,
            minibatch_size=2048,
            num_epochs=4,
        ),
    )
