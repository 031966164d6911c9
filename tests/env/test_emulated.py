"""Environments whose links carry real packets."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from distrlcc.env.config import EnvConfig
from distrlcc.env.emulated import EmulatedBatch
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.net

LINK = """
name = "{name}"
duration_s = 5.0
[link]
rate_mbps = {rate}
delay_ms = 20.0
queue_packets = 200
[[flows]]
scheme = "{scheme}"
cwnd = {cwnd}
"""
KEEP = 2  # the action that leaves the window as it is


@pytest.fixture
def link(tmp_path: Path) -> Callable[..., str]:
    def write(rate: float = 12.0, cwnd: float = 60.0, scheme: str = "agent") -> str:
        path = tmp_path / f"{rate:g}-{cwnd:g}-{scheme}.toml"
        path.write_text(LINK.format(name="kept", rate=rate, cwnd=cwnd, scheme=scheme))
        return str(path)

    return write


def _pid(env: LinkVectorEnv) -> int:
    assert isinstance(env.batch, EmulatedBatch)
    pid = env.batch.pid
    assert pid is not None
    return pid


def test_the_contract_holds() -> None:
    config = EnvConfig(suites=("random", "dynamic"), episode_s=0.15, world="emulated")
    env = LinkVectorEnv(3, config, seed=1)
    observation, info = env.reset()
    assert observation.shape == (3, env.batch.observation_size)
    ended = 0
    for _ in range(40):
        observation, reward, terminated, truncated, info = env.step(info["expert_action"])
        assert all(env.single_observation_space.contains(o) for o in observation)
        assert np.isfinite(reward).all()
        assert not terminated.any()
        assert info["late"].shape == (3,)
        if truncated.any():
            ended += int(truncated.sum())
            assert np.array_equal(info["_final_obs"], truncated)
            assert np.abs(observation[truncated]).max() == 0
            assert (info["final_obs"][truncated] != 0).any(axis=1).all()
            assert (info["link_episode"]["utilisation"] >= 0).all()
    assert ended >= 3
    env.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasiums_checker_finds_nothing_but_that_it_is_not_deterministic() -> None:
    spec = EnvSpec(
        "distrlcc/Emulated-v0",
        "distrlcc.env.vector:LinkEnv",
        nondeterministic=True,
        kwargs={"suites": ("indigo/3",), "episode_s": 0.2, "world": "emulated"},
    )
    env = gymnasium.make(spec)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_what_is_seen_agrees_with_the_simulator(
    link: Callable[..., str], thrice: Callable[..., None]
) -> None:
    def see(world: Literal["simulated", "emulated"]) -> NDArray[np.float64]:
        config = EnvConfig(suites=(link(),), stagger=False, world=world, episode_s=5.0)
        env = LinkVectorEnv(1, config, seed=0)
        env.reset()
        rows = []
        for _ in range(150):
            env.step(np.array([KEEP]))
            stats, view = env.batch.newest, env.batch.view()
            rows.append(
                [
                    stats.duration[0],
                    stats.acked[0],
                    stats.rtt_sum[0],
                    stats.sent[0],
                    view.used[0],
                    view.capacity[0],
                    stats.cwnd[0],
                    stats.inflight[0],
                ]
            )
        seconds, acked, rtt, sent, used, capacity, *_ = np.sum(rows[50:], axis=0)
        env.close()
        assert {row[6] for row in rows} == {60.0}
        assert {row[7] for row in rows[10:]} <= set(range(61))
        return np.array(
            [acked / seconds, rtt / acked, sent / seconds, used / capacity, capacity / seconds]
        )

    simulated = see("simulated")

    def once() -> None:
        ratio = see("emulated") / simulated
        assert ratio[4] == pytest.approx(1.0, rel=1e-3)
        assert 0.75 < ratio[0] < 1.1
        assert 0.95 < ratio[1] < 1.4
        assert 0.75 < ratio[2] < 1.1
        assert 0.75 < ratio[3] < 1.01

    thrice(once)


@pytest.mark.parametrize("action", ["indigo", "rate"])
def test_every_kind_of_action_reaches_the_packets(action: str) -> None:
    config = EnvConfig(suites=("indigo/3",), action=action, episode_s=5.0, world="emulated")
    env = LinkVectorEnv(1, config, seed=0)
    env.reset()
    up = np.array([[10.0]]) if action == "rate" else np.array([4])
    for _ in range(3):
        env.step(up)
    stats = env.batch.newest
    assert stats.pacing_rate[0] > 100 if action == "rate" else stats.cwnd[0] == 80
    # On a busy machine a step of 10 ms may pass in which nothing was sent.
    keep, sent = np.zeros((1, 1)) if action == "rate" else np.array([KEEP]), stats.sent[0]
    for _ in range(200):
        if sent > 0:
            break
        env.step(keep)
        sent = env.batch.newest.sent[0]
    assert sent > 0
    env.close()


def _descriptors(env: LinkVectorEnv) -> int:
    """Return how many descriptors the links' process has, once it has done what it was told.

    An episode's end lets a link be loaded anew, which closes its sockets and opens others while the
    step has already returned. What answers to one more step of the links alone is done with that.
    """
    env.batch.advance()
    return len(os.listdir(f"/proc/{_pid(env)}/fd"))


def test_episodes_leave_no_sockets_and_an_end_no_process() -> None:
    config = EnvConfig(suites=("indigo/3", "cellular"), episode_s=0.05, world="emulated")
    env = LinkVectorEnv(2, config, seed=1)
    env.reset()
    env.step(np.full(2, KEEP))
    pid = _pid(env)
    before = _descriptors(env)
    for _ in range(60):
        env.step(np.full(2, KEEP))
    env.reset()
    env.step(np.full(2, KEEP))
    assert _descriptors(env) == before
    env.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_a_forgotten_environment_ends_its_links() -> None:
    env = LinkVectorEnv(1, EnvConfig(world="emulated"), seed=1)
    env.reset()
    env.step(np.array([KEEP]))
    pid = _pid(env)
    del env
    gc.collect()
    assert not os.path.exists(f"/proc/{pid}")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean emulated"):
        EnvConfig(world="emulate")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="interval_rtts must be 0"):
        EnvConfig(world="emulated", interval_rtts=1.0)
    with pytest.raises(ConfigError, match=r"step_ms is 0\.5"):
        EnvConfig(world="emulated", step_ms=0.5)
    emulated = EnvConfig(world="emulated")
    with pytest.raises(ConfigError, match="expert 'cubic'"):
        LinkVectorEnv(1, emulated, expert="cubic")
    env = LinkVectorEnv(1, emulated)
    with pytest.raises(CheckpointError, match="begin new episodes"):
        env.load_state_dict(env.state_dict())
