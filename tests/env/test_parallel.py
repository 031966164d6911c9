"""PettingZoo: its own test, agents that enter and leave, and the vector environment's numbers."""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from distrlcc.env.config import EnvConfig
from distrlcc.env.parallel import SharedLinkParallelEnv
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError

JOINING = """
name = "joining"
duration_s = 0.6
link = {rate_mbps = 12.0, delay_ms = 5.0, queue_packets = 30}
flows = [
    {scheme = "agent", stop_s = 0.2},
    {scheme = "agent", start_s = 0.1, stop_s = 0.15},
    {scheme = "agent", start_s = 0.3},
]
"""


@pytest.fixture
def config(tmp_path: Path) -> EnvConfig:
    (tmp_path / "joining.toml").write_text(JOINING)
    return EnvConfig(suites=(str(tmp_path / "joining.toml"),), agents=3, stagger=False)


@pytest.mark.parametrize("action", ["multiplicative", "rate"])
def test_pettingzoos_own_test(action: str) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the actions' bounds
        parallel_api_test(SharedLinkParallelEnv(action=action, episode_s=6.0), num_cycles=400)
        parallel_seed_test(lambda: SharedLinkParallelEnv(action=action), num_cycles=100)


def test_agents_enter_and_leave(config: EnvConfig) -> None:
    env = SharedLinkParallelEnv(config)
    observations, _ = env.reset(seed=1)
    assert list(observations) == env.agents == ["agent_0"]
    when: dict[str, list[int]] = {agent: [] for agent in env.possible_agents}
    for step in range(60):
        actions = dict.fromkeys(env.agents, 2)
        observations, rewards, terminations, truncations, infos = env.step(actions)
        assert set(observations) == set(rewards) == set(truncations) == set(infos)
        assert not any(terminations.values())
        for agent in observations:
            when[agent].append(step)
        for agent, cut in truncations.items():
            assert cut == (agent not in env.agents)
            assert cut == ("link_episode" in infos[agent])
        if not env.agents:
            break
    # Steps of 10 ms. From 0.2 to 0.3 s no agent runs: that time passes in one step.
    assert when["agent_0"] == list(range(20))
    assert when["agent_1"] == list(range(9, 15))
    assert when["agent_2"] == list(range(19, 50))
    with pytest.raises(ResetNeeded):  # its time is over
        env.step({})
    env.reset()
    with pytest.raises(ValueError, match="no action for agent_0"):
        env.step({})
    with pytest.raises(ConfigError, match="unknown agent 'agent0': did you mean agent_0"):
        env.step({"agent_0": 1, "agent0": 1})
    for other in (1.7, 1.0, "1"):
        with pytest.raises(ValueError, match=rf"agent_0: {other} is not of Discrete\(6\)"):
            env.step({"agent_0": other})


def test_the_numbers_are_the_vector_environments(config: EnvConfig) -> None:
    env, vector = SharedLinkParallelEnv(config), LinkVectorEnv(3, config, autoreset=False)
    env.reset(seed=4)
    _, info = vector.reset(seed=4)
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(19):  # until the first leaves: then times differ
        actions: Any = rng.integers(0, 6, 3)
        acting = {agent: actions[int(agent[-1])] for agent in env.agents}
        observations, rewards, _, _, infos = env.step(acting)
        active = info["active"]
        observation, reward, _, truncated, info = vector.step(actions)
        rows = info["final_obs"] if truncated.any() else observation
        for agent in observations:
            k = int(agent[-1])
            np.testing.assert_array_equal(observations[agent], rows[k])
            assert rewards[agent] == reward[k]
            assert infos[agent]["cwnd"] == info["cwnd"][k]
            compared += int(active[k])
    assert compared > 20


def test_changes_are_as_make_vec_has_them() -> None:
    assert SharedLinkParallelEnv(agents=5, reward="aurora").max_num_agents == 5
    with pytest.raises(ConfigError, match="unknown setting 'agents_'"):
        SharedLinkParallelEnv(agents_=2)


def test_without_pettingzoo_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "distrlcc.env.parallel")
    with pytest.raises(ConfigError, match=r"extra 'pettingzoo'\): pip install '\.\[pettingzoo\]'"):
        importlib.import_module("distrlcc.env.parallel")
