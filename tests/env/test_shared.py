"""Several agents on one link: which acts when, what each sees and is paid, and that draws hold."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import FREE_WINDOW, NEAR_WINDOW, RewardConfig, with_fairness, with_window
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.collect import Collector
from distrlcc.learn.config import PPOConfig
from distrlcc.learn.ppo import PPO
from distrlcc.learn.rollout import Rollout
from distrlcc.policy.spec import PolicySpec
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.suites import load_suite, scenario_by_id
from tests.env.steps import check_same

K = 4
CONFIG = EnvConfig(
    suites=("shared",), agents=K, episode_s=1.0, reward=RewardConfig(fairness_weight=0.2)
)
LINK = Link(rate_mbps=12.0, delay_ms=10.0, queue_packets=60)
JOINING = Scenario(
    "joining",
    LINK,
    (Flow(), Flow(start_s=0.2), Flow(start_s=0.1, stop_s=0.305), Flow("cubic")),
    duration_s=1.0,
)
ACTION = 2  # the window stays


def _batch(scenario: Scenario, agents: int = K, **changes: Any) -> LinkBatch:
    batch = LinkBatch(1, replace(CONFIG, agents=agents, **changes), n_flows=len(scenario.flows))
    batch.load(0, scenario)
    return batch


def _kept(*flows: Flow) -> LinkBatch:
    """Return a batch whose agents keep the windows of their flows."""
    return _batch(Scenario("windows", LINK, flows, duration_s=2.0), agents=len(flows))


def _hold(batch: LinkBatch, steps: int) -> None:
    for _ in range(steps):
        batch.step(np.full(batch.active.size, ACTION))


def test_agents_join_and_leave_when_their_scenario_says() -> None:
    batch = _batch(JOINING)
    seen = [batch.active.copy()]
    for _ in range(40):
        acted = batch.active.copy()
        observation, reward = batch.step(np.full(K, ACTION))
        joined = batch.active & ~acted
        assert not observation[joined].any()
        assert not observation[~acted].any()
        assert not reward[~acted].any()
        seen.append(batch.active.copy())
    active = np.array(seen)
    assert active[:, 0].all()
    assert active[:, 1].tolist() == [t >= 20 for t in range(41)]
    assert active[:, 2].tolist() == [10 <= t < 31 for t in range(41)]
    assert not active[:, 3].any()  # CUBIC's flow is no agent


def test_what_stands_in_rows_without_an_agent_is_of_no_matter() -> None:
    one, other = _batch(JOINING), _batch(JOINING)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 6, K)
        wild = np.where(other.active, actions, rng.integers(0, 6, K))
        check_same([one.step(np.where(one.active, actions, 0))], [other.step(wild)])


@pytest.mark.parametrize("action", ["multiplicative", "rate"])
def test_one_agent_among_k_is_an_agent_alone(action: str) -> None:
    config = replace(CONFIG, action=action, reward=RewardConfig())
    alone, shared = LinkBatch(4, replace(config, agents=1)), LinkBatch(4, config)
    for n, scenario in enumerate(load_suite("random").scenarios("test", 4)):
        alone.load(n, scenario)
        shared.load(n, scenario)
    rng = np.random.default_rng(0)
    for _ in range(150):
        actions = rng.integers(0, 6, 4)
        expected = (*alone.step(actions), alone.labels())
        found = (*shared.step(np.repeat(actions, K)), shared.labels())
        check_same([tuple(each[::K] for each in found)], [expected])
        assert not found[0].reshape(4, K, -1)[:, 1:].any()


def test_shares_and_the_fairness_term() -> None:
    batch = _kept(Flow(cwnd=30.0), Flow(cwnd=10.0))
    shares = []
    for _ in range(100):
        batch.step(np.full(2, ACTION))
        shares.append(batch.share())
        assert shares[-1].mean() == pytest.approx(1.0)
    # The queue stands, so that throughputs are as the windows: 3 to 1.
    np.testing.assert_allclose(np.mean(shares[50:], axis=0), [1.5, 0.5], atol=0.03)
    view = batch.view()
    paid = with_fairness(np.ones(2), view, RewardConfig(fairness_weight=0.3))
    np.testing.assert_allclose(paid, 1.0 - 0.3 * np.abs(np.log(shares[-1])))
    np.testing.assert_array_equal(with_fairness(paid, view, RewardConfig()), paid)


def test_a_starved_agent_is_paid_as_one_with_a_tenth() -> None:
    batch = _kept(Flow(cwnd=60.0), Flow(start_s=0.5))
    _hold(batch, 51)
    assert batch.active.all()
    assert batch.share()[1] == 0.0
    paid = with_fairness(np.zeros(2), batch.view(), RewardConfig(fairness_weight=1.0))
    np.testing.assert_allclose(paid, -np.abs(np.log([2.0, 0.1])))


def test_packets_in_flight_that_are_not_their_part_of_the_bdp_are_paid_for() -> None:
    batch = _kept(Flow(cwnd=10.0), Flow(cwnd=28.0), Flow(start_s=0.5, cwnd=10.0))
    paid, zero = RewardConfig(window_weight=0.5), np.zeros(3)
    _hold(batch, 40)
    view: Any = batch.view()
    assert view.flows.tolist() == [2, 2, 2]
    half = 12e6 / 8 / 1504 * (0.020 + 1504 * 8 / 12e6) / 2  # of the BDP
    taken = with_window(zero, batch.newest, view, paid)
    off = np.log(batch.newest.inflight[:2] / half)
    assert abs(off[0]) < FREE_WINDOW < off[1]
    price = 0.5 * np.log1p((off[1] - FREE_WINDOW) / NEAR_WINDOW)
    np.testing.assert_allclose(taken[:2], [0.0, -price], atol=1e-6)
    _hold(batch, 20)
    view = batch.view()
    assert view.flows.tolist() == [3, 3, 3]
    assert with_window(zero, batch.newest, view, paid)[0] < -0.1  # a third would fit now
    assert with_window(zero, batch.newest, view, RewardConfig()) is zero


@pytest.mark.parametrize(("agents", "most"), [(1, 1), (2, 2), (1, 4)])
def test_windows_cost_nothing_while_a_scheme_runs_beside(agents: int, most: int) -> None:
    flows = (*(Flow(cwnd=60.0),) * agents, Flow("cubic", start_s=0.5, stop_s=1.0))
    scenario = Scenario("beside", LINK, flows, duration_s=2.0)
    batch = _batch(scenario, agents=most, reward=RewardConfig())
    running, free = [], []
    for _ in range(150):
        batch.step(np.full(most, ACTION))
        view: Any = batch.view()
        running.append((int(view.flows[0]), int(view.schemes[0])))
        zero = np.zeros(most)
        paid = with_window(zero, batch.newest, view, RewardConfig(window_weight=0.5))
        free.append(bool((paid[:agents] == 0).all()))
    assert running == [(agents, 0)] * 50 + [(agents + 1, 1)] * 50 + [(agents, 0)] * 50
    assert free == [False] * 50 + [True] * 50 + [False] * 50


def test_a_rollout_has_episodes_that_begin_at_joins_and_are_cut_at_leaves() -> None:
    env = LinkVectorEnv(32, replace(CONFIG, episode_s=12.0), seed=1)
    spec = PolicySpec("scale-free", env.batch.observation_size, "multiplicative", "discrete", 6)
    collector, rollout = Collector(env, spec, 1), Rollout.allocate(spec, 500, 32)
    learner = PPO(PPOConfig(), spec)
    collector.set_weights(learner.weights())
    stats = collector.collect(rollout)
    active, starts = rollout.active, rollout.starts
    assert 0.1 < active.mean() < 0.9
    assert stats.steps == rollout.samples == active.sum()
    joined, left = active[1:] & ~active[:-1], ~active[1:] & active[:-1]
    assert joined.any()
    assert left.any()
    assert starts[1:][joined].all()
    assert not rollout.obs[active & starts].any()
    assert rollout.truncated[:-1][left].all()
    assert not (rollout.truncated & ~active).any()
    assert (rollout.final_values[rollout.truncated] != 0).all()
    assert not rollout.rewards[~active].any()
    assert stats.episodes == rollout.truncated.sum()
    assert stats.reward == pytest.approx(rollout.rewards[active].sum(), rel=1e-5)
    assert all(np.isfinite(value) for value in learner.update(rollout).values())


ROOMS = replace(CONFIG, suites=("world",), agents=4, rooms=(1, 1, 2, 4), guard=0.05, pacing=2.0)


def test_links_with_room_for_different_numbers_draw_scenarios_that_fill_it() -> None:
    env = LinkVectorEnv(32, ROOMS)
    env.reset(seed=5)
    counts = []
    for name in env.link_names():
        flows = scenario_by_id(name).flows
        counts.append(sum(flow.scheme == "agent" for flow in flows))
    rooms = np.tile(ROOMS.rooms, 4)
    assert (counts <= rooms).all()
    assert (2 * np.array(counts) > rooms).all()


def test_whoever_joins_a_disturbed_link_begins_as_the_first_did() -> None:
    config = replace(CONFIG, kernel=True, jitter_ms=2.0, action_delay_steps=3)
    env = LinkVectorEnv(16, config, seed=1)
    env.reset()
    batch, joined, before = env.batch, 0, np.zeros(16, bool)
    for _ in range(900):
        begun = ~batch.acted & batch.active
        # What is chosen for those that are not there takes no effect, then or later.
        np.testing.assert_array_equal(batch.chosen()[0][~batch.active | begun], 10.0)
        assert (batch.chosen()[0][before & batch.active] <= 10.0).all()
        joined += begun.sum()
        before = begun
        env.step(np.where(batch.active, 1, 3))
    assert joined > 3


def test_a_share_of_the_links_has_agents_in_the_kernel() -> None:
    env = LinkVectorEnv(160, replace(CONFIG, kernel=0.5, jitter_ms=1.0), seed=1)
    env.reset()
    assert env.batch.disturbance is not None
    inside = env.batch.disturbance.in_kernel.reshape(-1, CONFIG.agents)
    assert (inside == inside[:, :1]).all()
    assert 0.25 < inside.mean() < 0.75
    agents_of_a_link = env.batch.disturbance.state_dict()["strength"].reshape(inside.shape)
    assert (np.ptp(agents_of_a_link, axis=1) > 0).all()
    # Each episode draws anew.
    for _ in range(2):
        assert isinstance(env.batch, LinkBatch)
        links, inside = env.batch.simulator.links, env.batch.disturbance.in_kernel[:: CONFIG.agents]
        np.testing.assert_array_equal(links[:, col.DELAYED_ACKS] == 1, inside)
        first = inside.copy()
        env.step(np.full(160, 2))
        for _ in range(round(100 * CONFIG.episode_s)):
            env.step(np.full(160, 2))
    assert 0.2 < (env.batch.disturbance.in_kernel[:: CONFIG.agents] != first).mean() < 0.8


@pytest.mark.slow
def test_rooms_are_filled_however_seldom_their_links_are() -> None:
    weights = (0.97, 0.03)  # one in 800 links has 9 to 16 agents
    few = replace(ROOMS, suites=("random", "world"), suite_weights=weights, agents=16, rooms=(16,))
    env = LinkVectorEnv(16 * 8, few)
    env.reset(seed=1)
    assert (env.batch.active.reshape(8, 16).sum(axis=1) > 0).all()
    agents = [scenario_by_id(name).flows for name in env.link_names()]
    assert min(sum(f.scheme == "agent" for f in flows) for flows in agents) > 8


@pytest.mark.slow
def test_links_that_fit_are_drawn_by_their_suites_weights() -> None:
    weights = (0.3, 0.2, 0.1, 0.4)  # the last has no link of one agent
    suites, rooms = ("random", "falls", "shallow", "shared-4"), (1, 1, 1, 1, 4)
    env = LinkVectorEnv(3200, replace(ROOMS, suites=suites, suite_weights=weights, rooms=rooms))
    env.reset(seed=1)
    names = [name.partition("/")[0] for name in env.link_names()]
    alone = [name for k, name in enumerate(names) if rooms[k % len(rooms)] == 1]
    shares = [alone.count(suite) / len(alone) for suite in suites]
    assert shares == pytest.approx([0.5, 1 / 3, 1 / 6, 0.0], abs=0.04)


@pytest.mark.slow
def test_rooms_that_no_scenario_fills_are_refused() -> None:
    config = replace(ROOMS, suites=("random",))
    with pytest.raises(ConfigError, match=r"random have no links of 2 to 2 agents; leave out"):
        LinkVectorEnv(8, config).reset(seed=1)
    with pytest.raises(ConfigError, match=r"rooms \(1, 3\): expected numbers of 1 to agents"):
        replace(ROOMS, rooms=(1, 3))
    with pytest.raises(ConfigError, match=r"9 environments .* expected multiples of 8"):
        LinkVectorEnv(9, ROOMS)
