"""DistRLCC's set-up: ten inputs, Indigo's actions, LSTM(32), links 0 to 25, the oracle's labels.

What is neither DistRLCC's nor Indigo's was chosen to learn within minutes on one core.
"""

from dataclasses import replace

from distrlcc.env.config import EnvConfig
from distrlcc.learn.config import DaggerConfig
from distrlcc.runs.run_config import ActorsConfig, HeldOutConfig, NetworkConfig, RunConfig

LINKS = tuple(f"indigo/{number}" for number in range(26))
"""Links 26 to 29, of 200 Mbit/s, are never drawn."""


def distrlcc() -> RunConfig:
    """DAgger that aggregates, as Indigo's, on episodes of 1000 steps.

    The data are bounded, since those of the early rounds, where the policy fills endless queues,
    crowd out the rest. One pass per round over many environments' data, short sequences from kept
    states, and a learning rate that falls with the steps gave the best accuracy in the same time.
    """
    steps = 4_800_000
    return RunConfig(
        recipe="distrlcc",
        num_envs=208,
        total_steps=steps,
        env=EnvConfig(suites=LINKS, observation="indigo-min-rtt", action="indigo", episode_s=10.0),
        network=NetworkConfig(kind="lstm", hidden=(32,)),
        held_out=HeldOutConfig(every=10, links=52),
        actors=ActorsConfig(envs_per_worker=16, segments_per_update=13),  # as many in a round
        dagger=DaggerConfig(
            lr=5e-3,
            lr_schedule=((0, 5e-3), (steps // 3, 5e-3), (2 * steps // 3, 1e-3), (steps, 1e-4)),
            minibatch_size=2048,
            num_epochs=1,
            capacity=300_000,
            rollout_length=128,
            sequence_length=16,
        ),
    )


def distrlcc_newest() -> RunConfig:
    """DistRLCC's own training: the newest 16 episodes of 1024 steps, 4 passes over them.

    Minibatches of 4 sequences and Adam without weight decay are its too. With 128 environments a
    round's segments of 128 steps replace all before them.
    """
    config = distrlcc()
    return replace(
        config,
        recipe="distrlcc-newest",
        num_envs=128,
        total_steps=1_000_000,
        env=replace(config.env, episode_s=10.24),
        held_out=replace(config.held_out, every=5),
        actors=ActorsConfig(segments_per_update=8),  # an episode
        dagger=DaggerConfig(
            lr=2.5e-3,
            l2=0.0,
            minibatch_size=4 * 128,
            num_epochs=4,
            min_gain=0.0,
            capacity=16 * 1024,
            rollout_length=128,
            sequence_length=128,
        ),
    )
