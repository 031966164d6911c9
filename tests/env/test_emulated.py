"""Environments whose links carry real packets."""

import gc
import os
from pathlib import Path
from typing import Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from distrlcc.config import to_toml
from distrlcc.env.config import EnvConfig
from distrlcc.env.emulated import EmulatedBatch
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import CheckpointError, KernelError
from distrlcc.net.worlds.kernel_world import require_world
from distrlcc.sim.scenario import Flow, Link, Scenario

pytestmark = pytest.mark.net

KEEP = 2  # the action that leaves the window as it is
World = Literal["emulated", "kernel"]


@pytest.fixture(autouse=True)
def _machine(request: pytest.FixtureRequest) -> None:
    if "[kernel]" in request.node.name:
        try:
            require_world(1)
        except KernelError as error:
            pytest.skip(str(error))


def _pid(env: LinkVectorEnv) -> int:
    assert isinstance(env.batch, EmulatedBatch)
    assert env.batch.world is not None
    return env.batch.world.pid


@pytest.mark.parametrize("world", ["emulated", "kernel"])
def test_the_contract_holds(world: World) -> None:
    config = EnvConfig(suites=("random", "dynamic"), episode_s=0.15, world=world)
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


def _see(link: str, world: Literal["simulated", "emulated"]) -> NDArray[np.float64]:
    """Return what a flow with a window of 60 meets: rates, round trip, utilisation, capacity."""
    config = EnvConfig(suites=(link,), stagger=False, world=world, episode_s=5.0)
    env = LinkVectorEnv(1, config, seed=0)
    env.reset()
    rows = []
    for step in range(150):
        env.step(np.array([KEEP]))
        stats, view = env.batch.newest, env.batch.view()
        assert stats.cwnd[0] == 60.0
        assert step < 10 or stats.inflight[0] in range(61)
        shown = (stats.duration, stats.acked, stats.rtt_sum, stats.sent, view.used, view.capacity)
        rows.append(np.concatenate(shown))
    seconds, acked, rtt, sent, used, capacity = np.sum(rows[50:], axis=0)
    env.close()
    return np.array(
        [acked / seconds, rtt / acked, sent / seconds, used / capacity, capacity / seconds]
    )


def test_what_is_seen_agrees_with_the_simulator(tmp_path: Path) -> None:
    """A busy machine delays packets: the bounds are wide below the rate and above the RTT."""
    link = Link(rate_mbps=12.0, delay_ms=20.0, queue_packets=200)
    path = tmp_path / "link.toml"
    path.write_text(to_toml(Scenario("kept", link, (Flow(cwnd=60.0),), duration_s=5.0)))
    ratio = _see(str(path), "emulated") / _see(str(path), "simulated")
    assert ratio[4] == pytest.approx(1.0, rel=1e-3)
    assert (ratio[[0, 2, 3]] > 0.4).all()
    assert (ratio[[0, 2, 3]] < [1.1, 1.1, 1.01]).all()
    assert 0.95 < ratio[1] < 2.5


def test_a_round_trip_without_a_queue_has_what_shaped_acks_add(tmp_path: Path) -> None:
    link = Link(rate_mbps=12.032, delay_ms=20.0, queue_packets=200, ack_tick_ms=20.0)
    path = tmp_path / "link.toml"
    path.write_text(to_toml(Scenario("bunched", link, duration_s=5.0)))
    env = LinkVectorEnv(1, EnvConfig(suites=(str(path),), world="emulated"), seed=0)
    env.reset()
    for _ in range(5):
        env.step(np.array([KEEP]))
    assert env.batch.view().base_rtt[0] == pytest.approx(0.041 + 0.02, abs=0.002)
    env.close()


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


@pytest.mark.parametrize("world", ["emulated", pytest.param("kernel", marks=pytest.mark.long)])
def test_episodes_leave_no_sockets_and_an_end_no_process(world: World) -> None:
    config = EnvConfig(suites=("indigo/3", "cellular"), episode_s=0.05, world=world)
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


def test_a_resume_begins_new_episodes() -> None:
    env = LinkVectorEnv(1, EnvConfig(world="emulated"))
    with pytest.raises(CheckpointError, match="begin new episodes"):
        env.load_state_dict(env.state_dict())
