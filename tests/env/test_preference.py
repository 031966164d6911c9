"""A preference for throughput or delay: what is seen, what is paid, and where it does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.env.config import EnvConfig
from distrlcc.env.contract import check
from distrlcc.env.rewards import LinkView, RewardConfig, distrlcc, preferred
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.runs.collect_data import CollectConfig
from distrlcc.types import IntervalStats

N = 6
CONFIG = EnvConfig(episode_s=0.3, reward=RewardConfig(delay_weights=(0.05, 5.0)))
PLAIN = replace(CONFIG, reward=RewardConfig())


def _step(env: LinkVectorEnv, t: int) -> Any:
    return env.step((np.arange(env.first_index, env.first_index + env.num_envs) + t) % 6)


def test_the_reward_has_each_rows_own_price() -> None:
    rng = np.random.default_rng(0)
    stats = IntervalStats(*rng.random((len(IntervalStats.names()), 5)))
    link = LinkView(*(0.1 + rng.random((4, 5))))
    preference = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    prices = [0.05, 0.05 * 10**0.5, 0.5, 0.5 * 10**0.5, 5.0]
    paid = preferred(stats, link, CONFIG.reward, preference)
    for n, price in enumerate(prices):
        own = distrlcc(stats, link, RewardConfig(delay_weight=price))[n] / (1 + price)
        assert paid[n] == pytest.approx(own, rel=1e-12)


def test_it_is_the_last_element_from_an_episodes_first_observation_on() -> None:
    env, plain = LinkVectorEnv(N, CONFIG, seed=1), LinkVectorEnv(N, PLAIN, seed=1)
    seen, (first, _) = env.reset()[0], plain.reset()
    assert env.batch.observation_size == plain.batch.observation_size + 1
    np.testing.assert_array_equal(seen[:, :-1], first)
    preference, drawn = seen[:, -1].copy(), [seen[:, -1].copy()]
    for t in range(90):
        (seen, _, _, truncated, info), (other, _, _, ended, _) = _step(env, t), _step(plain, t)
        np.testing.assert_array_equal(seen[:, :-1], other)  # the links are the same
        np.testing.assert_array_equal(truncated, ended)
        if truncated.any():  # it stays the episode's until its end
            np.testing.assert_array_equal(info["final_obs"][:, -1], preference)
        np.testing.assert_array_equal(seen[~truncated, -1], preference[~truncated])
        preference = seen[:, -1].copy()
        drawn.append(preference)
    values = np.unique(drawn)
    assert len(values) >= 3 * N
    assert 0.0 <= values.min() < 0.2
    assert 0.8 < values.max() <= 1.0


def test_halves_and_a_resume_see_the_same() -> None:
    assert check(CONFIG) is None
    env, again = LinkVectorEnv(N, CONFIG, seed=1), LinkVectorEnv(N, CONFIG, seed=8)
    low = LinkVectorEnv(N // 2, CONFIG, seed=1)
    high = LinkVectorEnv(N // 2, CONFIG, seed=1, first_index=N // 2)
    for each in (env, again, low, high):
        each.reset()
    for t in range(50):
        seen, paid = _step(env, t)[:2]
        a, b = _step(low, t), _step(high, t)
        np.testing.assert_array_equal(seen, np.concatenate([a[0], b[0]]))
        np.testing.assert_array_equal(paid, np.concatenate([a[1], b[1]]))
    again.load_state_dict(env.state_dict())
    for t in range(50, 100):
        one, two = _step(env, t), _step(again, t)
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1], two[1])


@pytest.mark.parametrize(
    ("change", "says"),
    [({"delay_weights": (0.5,)}, "least and the greatest"),
     ({"delay_weights": (5.0, 0.05)}, "least and the greatest"),
     ({"delay_weights": (0.0, 1.0)}, "above 0"),
     ({"delay_weights": (0.1, float("inf"))}, "least and the greatest"),
     ({"delay_weights": (0.1, 1.0), "window_weight": 1.0}, "window_weight with delay_weights"),
     ({"delay_weights": (0.1, 1.0), "name": "aurora"}, "aurora")],
)  # fmt: skip
def test_bad_ranges_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RewardConfig(**change)


def test_an_expert_has_no_preference() -> None:
    for name in ("imitation", "gail"):
        config = recipe(name)
        with pytest.raises(ConfigError, match="whatever is preferred"):
            replace(config, env=replace(config.env, reward=CONFIG.reward))
    with pytest.raises(ConfigError, match="whatever is preferred"):
        CollectConfig("oracle", env=CONFIG)
