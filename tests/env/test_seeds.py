"""Every entrance that takes a seed uses or refuses it; resets of some environments."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import distrlcc
from distrlcc.cli.main import main
from distrlcc.env.config import EnvConfig
from distrlcc.env.parallel import SharedLinkParallelEnv
from distrlcc.env.vector import LinkEnv, LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.sb3 import VecLink

SHORT: dict[str, Any] = {"suites": ("random",), "episode_s": 0.1, "stagger": False}


def _vector(**more: Any) -> LinkVectorEnv:
    return LinkVectorEnv(4, EnvConfig(**SHORT), seed=0, **more)


def _names(seed: Any, env: LinkVectorEnv | None = None) -> list[str]:
    env = _vector() if env is None else env
    env.reset(seed=seed)
    return env.link_names()


ENTRANCES: dict[str, Callable[[Any], Any]] = {
    "vector env's reset": lambda seed: _vector().reset(seed=seed),
    "one of its list": lambda seed: _vector().reset(seed=[1, 2, seed, 4]),
    "vector env": lambda seed: LinkVectorEnv(1, seed=seed),
    "make_vec": lambda seed: distrlcc.make_vec(2, seed=seed),
    "make_env": lambda seed: distrlcc.make_env(seed=seed),
    "env's reset": lambda seed: LinkEnv().reset(seed=seed),
    "PettingZoo": lambda seed: SharedLinkParallelEnv().reset(seed=seed),
    "Stable-Baselines3's constructor": lambda seed: VecLink(2, seed=seed),
    "Stable-Baselines3": lambda seed: VecLink(2).seed(seed),
    "load_policy": lambda seed: distrlcc.load_policy("one", seed=seed),
    "simulate": lambda seed: distrlcc.simulate(distrlcc.Link(12.0), seed=seed, seconds=0.2),
    "train": lambda seed: distrlcc.train("quickstart", out="none", seed=seed),
    "scenario": lambda seed: distrlcc.Scenario("x", distrlcc.Link(12.0), seed=seed),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_every_entrance_refuses_what_is_no_seed(entrance: str) -> None:
    for seed in (-1, 1.5, "1", True, float("nan"), np.float64(2.0), np.int64(-1), [1.5]):
        if entrance == "train" and seed in ("1", 2.0):  # as `--set seed=1` and 2e0
            continue
        with pytest.raises(ConfigError, match="seed"):
            ENTRANCES[entrance](seed)
    if entrance != "train":
        ENTRANCES[entrance](np.int64(3))


@pytest.mark.parametrize(
    "words",
    [
        "train quickstart --seed {}",
        "train quickstart --set seed={}",
        "collect oracle --steps 9 --seed {}",
        "tune pbt quickstart --mutate ppo.lr=uniform:0.1:1 --seed {}",
        "send 127.0.0.1:9 one --seed {}",
        "emulate --up 12 --down 12 --seed {} -- true",
        "check sim --seed {}",
        "evaluate cubic --trace cellular:{}",
    ],
)
def test_every_command_refuses_what_is_no_seed(
    words: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f" --out {tmp_path / 'run'}" if words.startswith(("train", "collect", "tune")) else ""
    for seed in ("-1", "1.5", ""):
        assert main((words.format(seed) + out).split(" ")) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_each_of_several_seeds_names_its_environments_links() -> None:
    a, b, c, d = _names([5, 6, 7, 8])
    assert len({a, b, c, d}) == 4
    assert _names([8, 7, 6, 5]) == [d, c, b, a]
    assert _names([5, 5, 5, 5]) == [a] * 4
    for changed in range(4):
        seeds = [5, 6, 7, 8]
        seeds[changed] = 99
        assert [x == y for x, y in zip(_names(seeds), (a, b, c, d), strict=True)] == [
            place != changed for place in range(4)
        ]
    # As one environment alone has them; tuples and arrays, too.
    for seed, name in ((5, a), (8, d)):
        alone = LinkVectorEnv(1, EnvConfig(**SHORT))
        assert _names(seed, alone) == _names([seed], alone) == [name]
    assert _names((5, 6, 7, 8)) == _names(np.array([5, 6, 7, 8])) == [a, b, c, d]
    # One number is a sequence of all, as before; after it the list's is forgotten.
    env = _vector()
    first = _names(3, env)
    _names([5, 6, 7, 8], env)
    assert _names(3, env) == first
    # None: that environment's sequence goes on.
    _names([5, 6, 7, 8], env)
    after = _names(None, env)
    _names([5, 6, 7, 8], env)
    assert _names([None, 6, None, 8], env) == [after[0], b, after[2], d]
    for wrong in ([1, 2, 3], [], [[1, 2, 3, 4]], [1, 2, 3, 4, 5]):
        with pytest.raises(ConfigError, match="seed"):
            env.reset(seed=wrong)  # type: ignore[arg-type]


def test_agents_of_one_link_name_it_together_and_disturbances_too() -> None:
    config = EnvConfig(suites=("shared",), agents=4, jitter_ms=5.0, kernel=0.5, episode_s=0.5)
    env = LinkVectorEnv(8, config, seed=0)

    def run(seed: Any) -> Any:
        rows = [env.reset(seed=seed)[0]]
        rows += [env.step(np.full(8, 3))[0] for _ in range(30)]
        return env.link_names(), np.array(rows)

    names, rows = run([1, 2, 3, 4, 5, 6, 7, 8])
    again, same = run([1, 2, 3, 4, 5, 6, 7, 8])
    assert names == again
    assert np.array_equal(rows, same)
    other, changed = run([1, 2, 3, 4, 5, 6, 7, 9])
    assert np.array_equal(rows[:, :4], changed[:, :4])
    assert not np.array_equal(rows[:, 4:], changed[:, 4:])
    assert names[0] == other[0]
    swapped, _ = run([5, 6, 7, 8, 1, 2, 3, 4])
    assert swapped == names[::-1]


def test_a_state_keeps_the_seeds_of_each_and_an_older_one_is_read() -> None:
    config = EnvConfig(**SHORT, jitter_ms=5.0)
    env, other = (LinkVectorEnv(4, config, seed=seed) for seed in (0, 1))
    env.reset(seed=[5, 6, 7, 8])
    other.reset()
    other.load_state_dict(env.state_dict())
    for _ in range(25):  # beyond the next links
        one, two = (each.step(np.full(4, 3)) for each in (env, other))
        assert np.array_equal(one[0], two[0])
    assert env.link_names() == other.link_names()
    env.reset(seed=3)
    older = env.state_dict()
    older["key"] = older["key"][:1]
    del older["numbers"]
    other.load_state_dict(older)
    assert other.link_names() == env.link_names()


def test_reset_mask_begins_some_and_leaves_the_others_as_they_are() -> None:
    env = _vector(autoreset=False)
    with pytest.raises(ConfigError, match="no episode has begun yet; reset all first"):
        env.reset(options={"reset_mask": np.ones(4, bool)})
    env.reset(seed=1)
    for _ in range(3):
        seen, *_ = env.step(np.arange(4))
    before, names = seen.copy(), env.link_names()
    seen[:] = 0  # the caller's own
    mask = np.array([True, False, False, True])
    observation, _ = env.reset(options={"reset_mask": mask})
    assert np.array_equal(observation[~mask], before[~mask])
    assert not np.array_equal(observation[mask], before[mask])
    assert [x == y for x, y in zip(env.link_names(), names, strict=True)] == (~mask).tolist()
    # The others go on: their episodes end first.
    ends = [env.step(np.full(4, 3))[3] for _ in range(10)]
    assert np.argmax(ends, axis=0)[~mask].tolist() == [6, 6]
    assert np.argmax(ends, axis=0)[mask].tolist() == [9, 9]
    # With seeds of their own; those that do not begin keep theirs.
    kept = env.link_names()
    env.reset(seed=[5, 6, 7, 8], options={"reset_mask": ~mask})
    expected = _names([5, 6, 7, 8])
    assert env.link_names() == [kept[0], expected[1], expected[2], kept[3]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"reset_mask": [True, False]}, "expected 4 booleans"),
        ({"reset_mask": np.zeros(4, bool)}, "one of them True"),
        ({"reset_mask": np.ones(4)}, "expected 4 booleans"),
        ({"reset_msk": np.ones(4, bool)}, "unknown option of reset 'reset_msk': did you mean"),
        ({"episode": -1}, "episode is -1: expected a whole number"),
        ({"episode": 1.5}, "episode is 1.5: expected a whole number"),
        ({"episode": [1, 2]}, "expected a whole number"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_line(options: dict[str, Any], why: str) -> None:
    env = _vector(autoreset=False)
    env.reset(seed=1)
    with pytest.raises(ConfigError) as caught:
        env.reset(options=options)
    assert why in str(caught.value)
    for other in (LinkEnv(), SharedLinkParallelEnv()):
        with pytest.raises(ConfigError):
            other.reset(options={"reset_msk": 1})
    links = VecLink(2)
    links.set_options({"reset_msk": 1})
    with pytest.raises(ConfigError):
        links.reset()


def test_reset_mask_is_refused_where_environments_begin_by_themselves_or_share_a_link() -> None:
    env = _vector()
    env.reset()
    with pytest.raises(ConfigError, match="make them with autoreset=False"):
        env.reset(options={"reset_mask": np.ones(4, bool)})
    shared = LinkVectorEnv(8, EnvConfig(suites=("shared",), agents=4), autoreset=False)
    shared.reset()
    with pytest.raises(ConfigError, match="agents of one link begin together"):
        shared.reset(options={"reset_mask": np.arange(8) < 3})
    shared.reset(options={"reset_mask": np.arange(8) < 4})


def test_options_reach_the_links_of_one_environment_too() -> None:
    env, vector = LinkEnv(EnvConfig(**SHORT)), LinkVectorEnv(1, EnvConfig(**SHORT))
    env.reset(seed=1, options={"episode": 3})
    vector.reset(seed=1, options={"episode": 3})
    assert env._vector.link_names() == vector.link_names()
    vector.reset(seed=1)
    assert env._vector.link_names() != vector.link_names()
    links = VecLink(2, EnvConfig(**SHORT))
    links.seed(1)
    links.set_options({"episode": 3})
    links.reset()
    named = links.links.link_names()
    links.reset()  # what was set holds once
    assert links.links.link_names() != named


def test_the_metadata_say_how_episodes_begin() -> None:
    assert _vector().metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert _vector(autoreset=False).metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert (
        distrlcc.make_vec(1, autoreset=False).metadata["autoreset_mode"] is AutoresetMode.DISABLED
    )
    assert LinkVectorEnv.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown split 'tset': did you mean test"):
        _vector(split="tset")
