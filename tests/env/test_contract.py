import copy
import pickle
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import distrlcc.env  # noqa: F401 - registers the environment
from distrlcc.config import from_toml, override, to_toml
from distrlcc.env.actions import ACTIONS
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.contract import check
from distrlcc.env.observations import OBSERVATIONS
from distrlcc.env.rewards import REWARDS, RewardConfig
from distrlcc.env.vector import LinkEnv, LinkVectorEnv, make_vector_env
from distrlcc.errors import ConfigError
from distrlcc.sim import layout as col
from tests.env.steps import check_same, steps

SUITES = ("random", "cellular", "dynamic", "indigo", "indigo-grid")
CASES = {
    **{
        f"{observation}, {action}": EnvConfig(observation=observation, action=action)
        for observation in OBSERVATIONS
        for action in ACTIONS
    },
    **{f"reward {name}": EnvConfig(reward=RewardConfig(name)) for name in REWARDS},
    "every suite, intervals of RTTs": EnvConfig(suites=SUITES, interval_rtts=0.5),
    "late actions, jitter, cuts": EnvConfig(action_delay_steps=3, jitter_ms=3.0, cuts_per_s=3.0),
    "the kernel's habits": EnvConfig(kernel=True),
    "preferences": EnvConfig(reward=RewardConfig(delay_weights=(0.05, 5.0))),
}


@pytest.mark.parametrize("name", CASES)
def test_every_space_and_reward_keeps_the_contract(name: str) -> None:
    assert check(replace(CASES[name], episode_s=0.3)) is None


def test_the_contract_notices_a_broken_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: LinkBatch, which: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.full((len(which), self.observation_size), 7.0, np.float32)

    monkeypatch.setattr("distrlcc.env.batch.LinkBatch.first_observation", broken)
    assert check(EnvConfig(episode_s=0.3)) is not None


def _make(seconds: float = 0.1) -> Any:
    return gymnasium.make("distrlcc/Link-v0", episode_s=seconds)


def test_staggered_episodes_do_not_end_together() -> None:
    env = LinkVectorEnv(64, EnvConfig(episode_s=1.0))
    env.reset(seed=1)
    ends = [int(env.step(np.full(64, 2))[3].sum()) for _ in range(100)]
    assert max(ends) <= 6
    assert sum(ends) >= 64


def test_an_episodes_end_is_told_and_the_oracle_fills_the_links_without_a_queue() -> None:
    env = LinkVectorEnv(64, EnvConfig(stagger=False))
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    _, info = env.reset(seed=2)
    truncated = np.zeros(64, bool)
    while not truncated.any():
        _, _, _, truncated, info = env.step(info["expert_action"])
    assert truncated.all()
    assert (info["final_obs"] != 0).any(axis=1).all()
    episode = info["link_episode"]
    assert episode["utilisation"].shape == (64,)
    assert episode["utilisation"].mean() > 0.97
    assert episode["queueing_delay"].mean() < 0.05


def test_suites_without_weights_are_drawn_alike() -> None:
    rates = []
    for weights in ((), (2.0, 2.0)):
        env = LinkVectorEnv(64, EnvConfig(("random", "cellular"), weights))
        env.reset(seed=1)
        rates.append(env.batch.mean_rate)
        assert isinstance(env.batch, LinkBatch)
        assert 20 <= int((env.batch.simulator.links[:, col.IS_TRACE] == 1).sum()) <= 44
    assert np.array_equal(rates[0], rates[1])


def test_configurations_with_weights_written_out_still_load() -> None:
    text = to_toml(EnvConfig()).replace("suite_weights = []", "suite_weights = [1.0]")
    old = from_toml(EnvConfig, text)
    assert old.suite_weights == old.weights == (1.0,)
    assert to_toml(old) == text
    both = override(old, ["suites=['random', 'dynamic']", "suite_weights=[]"])
    assert both.weights == (1.0, 1.0)


def test_suites_set_alone_are_drawn_alike() -> None:
    weighed = EnvConfig(("random", "cellular", "dynamic"), (0.5, 0.3, 0.2))
    other = "suites=['random', 'fast', 'slow']"
    assert override(weighed, [other]).weights == (1.0, 1.0, 1.0)
    for order in (1, -1):
        both = override(weighed, [other, "suite_weights=[1, 2, 3]"][::order])
        assert both.suite_weights == (1.0, 2.0, 3.0)
    assert override(weighed, ["step_ms=20"]).suite_weights == (0.5, 0.3, 0.2)


def test_gymnasiums_statistics_wrappers_work() -> None:
    from gymnasium.wrappers import RecordEpisodeStatistics
    from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorStatistics

    single = RecordEpisodeStatistics(_make(0.2))
    vector = VectorStatistics(LinkVectorEnv(3, EnvConfig(episode_s=0.2, stagger=False)))
    for env, action, lengths in ((single, 3, 20), (vector, np.full(3, 3), [20] * 3)):
        env.reset(seed=1)
        for _ in range(20):
            *_, info = env.step(action)  # type: ignore[arg-type]
        np.testing.assert_array_equal(info["episode"]["l"], lengths)


def test_unseeded_environments_differ_and_each_reset_is_the_next_link() -> None:
    def seen(env: Any, seed: int | None = None, number: int = 9) -> tuple[float, ...]:
        assert env.reset(seed=seed)[1]["cwnd"] == 10
        return tuple(np.concatenate([env.step(5)[0] for _ in range(number)]))

    # Links look alike until their first acknowledgement, so a second is seen of each.
    assert len({seen(_make(1.0), number=99) for _ in range(4)}) == 4
    early, late = _make(), _make()
    sequences = [seen(early, seed=5)], [seen(late, seed=5)]
    for _ in range(2):
        *_, truncated, info = late.step(5)
        assert truncated
        assert info["cwnd"] > 10
        sequences[0].append(seen(early))  # an episode that was not ended counts as one
        sequences[1].append(seen(late))
    assert sequences[0] == sequences[1]


SHARED = EnvConfig(
    ("shared", "beside-cubic"), agents=4, episode_s=1.0, reward=RewardConfig(fairness_weight=0.2)
)
WORLDS: dict[str, tuple[EnvConfig, str]] = {
    "alone": (EnvConfig(("random", "cellular", "dynamic"), (1, 1, 1), episode_s=0.3), "oracle"),
    "disturbed": (
        EnvConfig(action_delay_steps=3, jitter_ms=4.0, cuts_per_s=50.0, episode_s=0.6),
        "oracle",
    ),
    "kernel": (
        EnvConfig(
            suites=("random", "cellular"), kernel=True, jitter_ms=1.0, cuts_per_s=3.0, episode_s=0.6
        ),
        "oracle",
    ),
    "preference": (EnvConfig(reward=RewardConfig(delay_weights=(0.05, 5.0))), "oracle"),
    "demonstrated": (EnvConfig(episode_s=0.5, kernel=0.5), "cubic"),
    "shared": (SHARED, "oracle"),
    "rooms, guarded and paced": (
        EnvConfig(
            suites=("world",),
            agents=4,
            rooms=(1, 1, 2, 4),
            guard=0.05,
            pacing=2.0,
            episode_s=1.0,
            observation="scale-free-spread",
        ),
        "oracle",
    ),
    "rooms, disturbed": (
        EnvConfig(
            suites=("shared",),
            agents=2,
            rooms=(1, 1, 2),
            action_delay_steps=2,
            jitter_ms=2.0,
            cuts_per_s=2.0,
            kernel=0.5,
            episode_s=1.0,
        ),
        "oracle",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_a_resume_a_copy_and_two_processes_have_the_links_of_one_bit_for_bit(name: str) -> None:
    config, expert = WORLDS[name]
    whole, low, high = (
        LinkVectorEnv(n, config, seed=5, first_index=first, expert=expert)
        for n, first in ((16, 0), (8, 0), (8, 8))
    )
    for env in (whole, low, high):
        env.reset()
    early, again = steps(whole, 0, 70), LinkVectorEnv(16, config, seed=9, expert=expert)
    again.load_state_dict(whole.state_dict())
    copies = again, copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))
    late = steps(whole, 70, 150)
    for env in copies:
        check_same(late, steps(env, 70, 150))
    halves = zip(steps(low, 0, 150), steps(high, 0, 150), strict=True)
    joined = [tuple(map(np.concatenate, zip(a, b, strict=True))) for a, b in halves]
    check_same(early + late, joined)


BAD: list[tuple[type, dict[str, Any], str]] = [
    (EnvConfig, {"observation": "scalefree"}, "did you mean scale-free"),
    (EnvConfig, {"action": "indgo"}, "did you mean indigo"),
    (EnvConfig, {"world": "emulate"}, "did you mean emulated"),
    (EnvConfig, {"suites": ()}, "expected a tuple of names"),
    (EnvConfig, {"suite_weights": (1.0, 2.0)}, "expected one for each, or none"),
    (EnvConfig, {"suites": ("random", "dynamic"), "suite_weights": (1.0,)}, "1 entries for 2"),
    (EnvConfig, {"suite_weights": (-1.0,)}, "positive sum"),
    (EnvConfig, {"step_ms": 0.0}, "step_ms is 0.0: expected 0.1 to 10000"),
    (EnvConfig, {"step_ms": 0.5, "world": "emulated"}, r"step_ms is 0\.5"),
    (EnvConfig, {"interval_rtts": 1.0, "world": "emulated"}, "interval_rtts is 1.0: expected 0"),
    (EnvConfig, {"episode_s": float("nan")}, "episode_s"),
    (EnvConfig, {"episode_s": 0.1, "step_ms": 101.0}, "step_ms is 101.0: expected 0.1 to 100"),
    (EnvConfig, {"jitter_ms": -1.0}, "jitter_ms"),
    (EnvConfig, {"jitter_ms": 1.0, "world": "emulated"}, "own"),
    (EnvConfig, {"cuts_per_s": -1.0}, "cuts_per_s"),
    (EnvConfig, {"cuts_per_s": 0.1, "action": "rate"}, "expected 0, as action rate sets"),
    (EnvConfig, {"cuts_per_s": 0.1, "world": "emulated"}, "own"),
    (EnvConfig, {"kernel": True, "world": "emulated"}, "kernel is 1.0: expected 0"),
    (EnvConfig, {"kernel": 1.5}, "kernel"),
    (EnvConfig, {"action_delay_steps": 101}, "action_delay_steps"),
    (EnvConfig, {"agents": 99}, "agents is 99: expected 1 to 32"),
    (EnvConfig, {"agents": 4, "world": "emulated"}, "links have one agent each"),
    (RewardConfig, {"name": "indigo"}, "unknown reward"),
    (RewardConfig, {"delay_weights": (0.5,)}, "least and the greatest"),
    (RewardConfig, {"delay_weights": (5.0, 0.05)}, "least and the greatest"),
    (RewardConfig, {"delay_weights": (0.0, 1.0)}, "above 0"),
    (RewardConfig, {"delay_weights": (0.1, float("inf"))}, "least and the greatest"),
    (RewardConfig, {"delay_weights": (0.1, 1.0), "window_weight": 1.0}, "with delay_weights"),
    (RewardConfig, {"delay_weights": (0.1, 1.0), "name": "aurora"}, "aurora"),
]


@pytest.mark.parametrize(("kind", "change", "says"), BAD)
def test_a_bad_configuration_is_refused(kind: type, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kind(**change)


@pytest.mark.parametrize(
    ("count", "config", "expert", "says"),
    [
        (6, SHARED, "oracle", "multiples of 4"),
        (2**40, EnvConfig(), "oracle", "num_envs is 1099511627776: expected 1 to 1048576"),
        (8, replace(SHARED, agents=2), "oracle", r"it has \d agents; expected 2"),
        (4, SHARED, "cubic", "agents is 4: expected 1, as cubic drives"),
        (1, EnvConfig(), "cubik", "did you mean cubic"),
        (1, EnvConfig(), "agent", "unknown scheme 'agent'"),
        (1, EnvConfig(world="emulated"), "cubic", "world is 'emulated': expected 'simulated'"),
    ],
)
def test_what_does_not_fit_is_said(count: int, config: EnvConfig, expert: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LinkVectorEnv(count, config, expert=expert)


def _wrong(shape: tuple[int, ...], discrete: bool) -> list[Any]:
    """Return actions of other shapes, types and values than a space's."""
    fine = np.ones(shape, np.int64 if discrete else np.float32)
    found: list[Any] = [fine[:-1], np.ones((*shape, 2), fine.dtype), fine[None], fine[0], None]
    found += [fine.astype(bool), fine.astype(str), fine.astype(complex), fine.astype(object)]
    found += [fine.astype(float), fine * 99, -fine] if discrete else [fine * np.nan, fine * np.inf]
    return found


@pytest.mark.parametrize("action", ["multiplicative", "rate"])
def test_actions_of_another_shape_or_type_are_refused(action: str) -> None:
    env = make_vector_env(2, suites=("slow",), action=action)
    env.reset(seed=0)
    discrete = action == "multiplicative"
    for bad in _wrong(env.action_space.shape or (2,), discrete):
        with pytest.raises(ValueError, match="do not fit; expected 2 of") as caught:
            env.step(bad)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="masked"):
        env.step(np.ma.masked_array(env.action_space.sample(), [True, False]))
    env.step(env.action_space.sample())
    env.step(np.ones(2, np.int32 if discrete else np.float64))
    if not discrete:
        with pytest.warns(UserWarning, match=r"beyond Box\(-10.0, 10.0, .* count as its bounds"):
            observation = env.step(np.array([99.0, -99.0]))[0]
        assert observation[:, -1].tolist() == [10.0, -10.0]
    alone = LinkEnv(suites=("slow",), action=action)
    alone.reset(seed=0)
    for wrong in ("a", None, [1, 1], True):
        with pytest.raises(ValueError, match="do not fit; expected 1 of"):
            alone.step(wrong)


def test_a_step_before_a_reset_or_after_the_end_is_refused() -> None:
    vector = make_vector_env(2, suites=("slow",), episode_s=0.05, stagger=False)
    waiting = make_vector_env(2, suites=("slow",), episode_s=0.05, autoreset=False, stagger=False)
    alone = LinkEnv(suites=("slow",), episode_s=0.05)
    cases: Any = ((vector, np.ones(2, int)), (waiting, np.ones(2, int)), (alone, 1))
    for env, action in cases:
        with pytest.raises(ResetNeeded, match="call reset before step"):
            env.step(action)
        env.reset(seed=0)
        ends = [env.step(action)[3] for _ in range(5)]
        assert np.all(ends[-1])
        if env is vector:  # the next episodes began by themselves
            env.step(action)
            continue
        with pytest.raises(ResetNeeded, match="all are over"):
            env.step(action)
        env.reset()
        env.step(action)
    # Where a state was put back, an episode goes on.
    again = make_vector_env(2, suites=("slow",), episode_s=0.05)
    again.load_state_dict(vector.state_dict())
    again.step(np.ones(2, int))
