"""What a collector writes, judged by what the environment did."""

import copy
from typing import Any

import numpy as np
import pytest

from distrlcc import seeding
from distrlcc.learn.collect import Collector, CollectStats
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.learner import Weights
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout, concatenate
from distrlcc.policy.numpy_policy import NumpyNetwork
from distrlcc.policy.spec import PolicySpec
from tests.learn.toys import ToyEnv, make_spec

Fields = ("obs", "actions", "logp", "rewards", "truncated", "values", "final_values")


def _weights(spec: PolicySpec, expert: bool = False, seed: int = 3) -> Weights:
    weights = PPO(PPOConfig(), spec, seed).weights()
    # Heads with something to say, so that actions and values differ between observations.
    generator = np.random.default_rng(seed)
    for name in ("policy_head.weight", "value_head.weight"):
        weights.arrays[name] = generator.normal(0, 0.3, weights.arrays[name].shape).astype("f4")
    return Weights(4, weights.arrays, expert)


def _collect(
    env: Any, spec: PolicySpec, length: int = 20, expert: bool = False
) -> tuple[Rollout, CollectStats, Collector]:
    collector = Collector(env, spec, seed=1)
    collector.set_weights(_weights(spec, expert))
    rollout = Rollout.allocate(spec, length, env.num_envs, 4)
    return rollout, collector.collect(rollout), collector


@pytest.mark.parametrize("kind", ["mlp", "lstm", "mingru"])
def test_rows_are_consistent(kind: str) -> None:
    spec = make_spec("memory", kind=kind, hidden=(8,))
    rollout, stats, _ = _collect(ToyEnv(6, "memory"), spec)
    network = NumpyNetwork(spec, _weights(spec).arrays)
    assert (rollout.steps, rollout.version) == (20, 4)
    ages = np.round(rollout.obs[..., 3] * 8).astype(int)
    np.testing.assert_array_equal(ages[0], np.arange(6) % 8)
    np.testing.assert_array_equal(rollout.starts[1:], rollout.truncated[:-1])
    np.testing.assert_array_equal(ages[1:][rollout.starts[1:]], 0)
    hits = rollout.actions == rollout.expert_actions
    np.testing.assert_array_equal(rollout.rewards, hits)
    # Judge values, log-probabilities, states and final values by running every row again.
    state = network.initial_state(6)
    for t in range(20):
        state = np.where(rollout.starts[t][:, None], np.float32(0), state)
        if kind != "mlp" and t % 4 == 0:
            np.testing.assert_allclose(rollout.states[t // 4], state, atol=1e-6)
        head, values, state = network.step(rollout.obs[t], state)
        np.testing.assert_allclose(rollout.values[t], values, atol=1e-6)
        log_probs = head - np.log(np.exp(head).sum(1, keepdims=True))
        np.testing.assert_allclose(
            rollout.logp[t], log_probs[np.arange(6), rollout.actions[t]], atol=1e-5
        )
        final = np.zeros((6, 4), np.float32)
        final[:, 3] = 1.0  # memory's final observation: no cue, age 8 of 8
        expected = np.where(rollout.truncated[t], network.step(final, state)[1], 0.0)
        np.testing.assert_allclose(rollout.final_values[t], expected, atol=1e-6)
    # The mean of -log p over drawn actions estimates the entropy.
    assert -rollout.logp.mean() == pytest.approx(stats.entropy / stats.steps, abs=0.05)
    assert rollout.truncated.sum() == stats.episodes == sum((age + 20) // 8 for age in range(6))
    assert stats.steps == 120
    assert stats.reward == rollout.rewards.sum()
    # Windows of environments 1, 3 and 5 never rise; environment 4 was first seen after its rise.
    assert stats.silent_episodes == sum((age + 20) // 8 for age in (1, 3, 5)) + 1
    assert stats.environment_seconds > 0
    assert stats.inference_seconds > 0


@pytest.mark.parametrize("task", ["match", "track"])
def test_two_collectors_of_n_act_as_one_of_2n(task: Any) -> None:
    spec = make_spec(task)
    whole, _, _ = _collect(ToyEnv(6, task), spec)
    halves = [_collect(ToyEnv(3, task, first), spec)[0] for first in (0, 3)]
    joined = concatenate(halves)
    for name in Fields:
        np.testing.assert_allclose(getattr(joined, name), getattr(whole, name), atol=1e-5)
    np.testing.assert_array_equal(joined.last_values.shape, whole.last_values.shape)


@pytest.mark.parametrize("task", ["match", "track"])
def test_the_expert_acts_where_the_weights_say_so(task: Any) -> None:
    rollout, stats, _ = _collect(ToyEnv(5, task), make_spec(task), expert=True)
    np.testing.assert_array_equal(rollout.actions, rollout.expert_actions)
    assert stats.metrics()["reward"] == 1.0


def test_cut_short_goes_on_where_it_stopped() -> None:
    spec = make_spec("memory", kind="lstm", hidden=(8,))
    whole, _, _ = _collect(ToyEnv(4, "memory"), spec, length=14)
    collector = Collector(ToyEnv(4, "memory"), spec, seed=1)
    collector.set_weights(_weights(spec))
    rollout = Rollout.allocate(spec, 14, 4, 4)
    asked: list[int] = []
    stats = collector.collect(rollout, stop=lambda done: asked.append(done) or done == 6)  # type: ignore[func-returns-value]
    assert (rollout.steps, asked, stats.steps) == (6, [1, 2, 3, 4, 5, 6], 24)
    np.testing.assert_array_equal(rollout.actions[:6], whole.actions[:6])
    np.testing.assert_allclose(rollout.last_values, whole.values[6], atol=1e-6)
    collector.collect(rollout)
    np.testing.assert_array_equal(rollout.actions[:8], whole.actions[6:])
    np.testing.assert_allclose(rollout.values[:8], whole.values[6:], atol=1e-6)


def test_resume_is_bit_identical() -> None:
    spec = make_spec("memory", kind="lstm", hidden=(8,))
    env = ToyEnv(4, "memory")
    rollout, _, collector = _collect(env, spec)
    state = collector.state_dict()
    kept = copy.deepcopy(env)
    stats = collector.collect(rollout)
    first = rollout.copy()
    again = Collector(kept, spec, seed=1)
    again.load_state_dict(state)
    again.set_weights(_weights(spec))
    again_stats = again.collect(rollout)
    for name in Fields:
        np.testing.assert_array_equal(getattr(rollout, name), getattr(first, name))
    assert again_stats.silent_episodes == stats.silent_episodes


def test_draws_are_those_promised() -> None:
    spec = make_spec()
    weights = PPO(PPOConfig(), spec).weights()
    weights.arrays["policy_head.weight"][:] = 0.0  # uniform over three actions
    collector = Collector(ToyEnv(4, "match", first_index=10), spec, seed=9)
    rollout = Rollout.allocate(spec, 5, 4)
    collector.set_weights(weights)
    for _ in range(2):
        collector.collect(rollout)
    uniform = seeding.uniform(seeding.stream_key(9, "act"), np.arange(10, 14), 7)
    np.testing.assert_array_equal(rollout.actions[2], (uniform * 3).astype(int))


def test_stats_add_up() -> None:
    a = CollectStats(steps=10, reward=5, episodes=2, utilisation=1.0, silent_episodes=1)
    b = CollectStats(steps=30, reward=1, episodes=2, utilisation=2.0)
    a.merge(b)
    metrics = a.metrics()
    assert metrics["reward"] == pytest.approx(0.15)
    assert metrics["utilisation"] == pytest.approx(0.75)
    assert metrics["silent_episode_share"] == 0.25
    assert "utilisation" not in CollectStats(steps=1).metrics()
    assert CollectStats().metrics() == {"episodes": 0}
