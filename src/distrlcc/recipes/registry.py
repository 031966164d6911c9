"""Every recipe, by its name: our own, from the demo's to the policies to take, and papers'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from distrlcc.config import from_dict, read_toml
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import RewardConfig
from distrlcc.errors import unknown_name
from distrlcc.learn.config import DaggerConfig, GailConfig, PPOConfig
from distrlcc.runs.run_config import ActorsConfig, HeldOutConfig, NetworkConfig, RunConfig


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


def one() -> RunConfig:
    """The policy to take: one for every link, alone or shared.

    Nearly all that links do is in training (the suite ``world``), and more of what is hard. A
    minGRU learns as much as an LSTM in half the time, and the layer behind it lets what is
    remembered change the answer to what is seen. The spread of RTTs tells jitter from a queue,
    windows are paced, and a guard bounds them. Half of the episodes tell what the kernel's TCP
    tells. Windows are cut at random, so that a policy learns to grow back. Beside CUBIC and BBR a
    queue costs 0.35 of its price.
    """
    steps = 150_000_000
    return RunConfig(
        recipe="one",
        num_envs=500,
        total_steps=steps,
        env=EnvConfig(
            suites=(
                *("world", "random", "dynamic", "cellular", "jitter", "fast", "falls", "silent"),
                *("shallow", "whole-ms", "lossy", "long"),
                *("shared", "shared-rtt", "beside-cubic", "beside-bbr"),
            ),
            suite_weights=(
                *(0.16, 0.08, 0.14, 0.06, 0.08, 0.03, 0.05, 0.04),
                *(0.07, 0.12, 0.08, 0.04),
                *(0.04, 0.02, 0.01, 0.05),
            ),
            kernel=0.5,
            cuts_per_s=0.2,
            observation="scale-free-spread",
            action="fine",
            reward=RewardConfig(
                delay_weight=0.5,
                beside_weight=0.35,
                window_weight=1.0,
                guard_weight=0.6,
                fairness_weight=0.8,
            ),
            episode_s=20.0,
            agents=16,
            rooms=(1,) * 56 + (2,) * 6 + (4, 4, 8, 16),
            pacing=1.5,
            guard=0.05,
        ),
        network=NetworkConfig(kind="mingru", hidden=(64, 64), post_hidden=128),
        held_out=HeldOutConfig(every=400, seconds=16.0, keep="newest", average_steps=30_000_000),
        ppo=PPOConfig(
            gamma=0.99,
            lambda_=0.97,
            reward_scale=0.01,
            privileged_critic=True,
            sequence_length=64,
            entropy_coeff_schedule=((0, 6e-3), (90_000_000, 2e-3), (steps, 1e-3)),
            lr_schedule=((0, 1e-3), (90_000_000, 1e-3), (steps, 4e-4)),
        ),
    )


def indigo() -> RunConfig:
    """Indigo's observation, actions, LSTM and 10 s episodes, on its own links."""
    return RunConfig(
        recipe="indigo",
        num_envs=60,
        total_steps=3_000_000,
        env=EnvConfig(suites=("indigo",), observation="indigo", action="indigo", episode_s=10.0),
        network=NetworkConfig(kind="lstm", hidden=(32,)),
        dagger=DaggerConfig(rollout_length=250, sequence_length=50, minibatch_size=5000),
    )


def distrlcc() -> RunConfig:
    """DistRLCC's ten inputs with Indigo's actions, LSTM(32), links 0 to 25, the oracle's labels.

    DAgger that aggregates, as Indigo's, on episodes of 1000 steps. What is neither DistRLCC's nor
    Indigo's was chosen to learn within minutes on one core. The data are bounded, since those of
    the early rounds, where the policy fills endless queues, crowd out the rest. One pass per round
    over many environments' data, short sequences from kept states, and a learning rate that falls
    with the steps gave the best accuracy in the same time.
    """
    steps = 4_800_000
    return RunConfig(
        recipe="distrlcc",
        num_envs=208,
        total_steps=steps,
        env=EnvConfig(
            suites=tuple(f"indigo/{number}" for number in range(26)),  # not those of 200 Mbit/s
            observation="indigo-min-rtt",
            action="indigo",
            episode_s=10.0,
        ),
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
    """DistRLCC's own training: the newest 16 episodes of 1024 steps, up to 4 passes over them.

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


def aurora() -> RunConfig:
    """PPO on the links of the suite ``aurora``, in episodes of 400 monitor intervals.

    Jay et al., "A Deep Reinforcement Learning Perspective on Internet Congestion Control", ICML
    2019, with the ranges and settings of its repository PCC-RL.
    """
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


def genet() -> RunConfig:
    """Genet's observation, reward, network and PPO, on the widest of its ranges of links.

    Xia et al., "Genet: Automatic Curriculum Generation for Learning Adaptation in Networking",
    SIGCOMM 2022; without the curriculum.
    """
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


def gail() -> RunConfig:
    """Inverse reinforcement learning: GAIL with PPO, from the oracle's trajectories.

    Quickstart's environments; the reward is the discriminator's, and chooses nothing. The
    demonstrations: ``distrlcc collect oracle --disturb 0 --out DATA``. More entropy than
    where the reward stands still, and rates that fall, as the two would else circle each other.
    """
    config, steps = quickstart(), 6_000_000
    assert config.ppo is not None
    return replace(
        config,
        recipe="gail",
        max_seconds=0.0,
        held_out=replace(config.held_out, keep="newest"),
        gail=GailConfig(num_epochs=1),
        total_steps=steps,
        ppo=replace(
            config.ppo,
            entropy_coeff_schedule=((0, 0.01), (steps // 2, 0.01), (steps, 0.001)),
            lr_schedule=((0, 1e-3), (steps // 2, 1e-3), (steps, 1e-4)),
        ),
    )


_PAPERS = (indigo, distrlcc, distrlcc_newest, gail, aurora, genet)
RECIPES: dict[str, Callable[[], RunConfig]] = {
    config.__name__.replace("_", "-"): config
    for config in (quickstart, imitation, *_PAPERS, preference, one)
}


def recipe(name: str) -> RunConfig:
    """Return a recipe by its name, or by a ``.toml`` file, as a run has; raises ConfigError."""
    if name in RECIPES:
        return RECIPES[name]()
    if not name.endswith(".toml"):
        raise unknown_name("recipe", name, RECIPES)
    return from_dict(RunConfig, read_toml(name), source=name)
