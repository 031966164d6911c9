"""What can be tuned, what values are drawn from, and what mutation makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_config import RunConfig
from distrlcc.tune.space import (
    MUTABLE,
    Distribution,
    check_space,
    explorer,
    load_function,
    space_of,
    with_values,
)
from distrlcc.tune.tune_config import PBTConfig, SearchConfig, TuneConfig


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("uniform:0:0.02", (0.0, 0.02)),
        ("loguniform:1e-5:1e-2", (1e-5, 1e-2)),
        ("int:1:8", (1, 8)),
        ("choice:1,2,4", (1, 2, 4)),
        ("choice:relu, tanh", ("relu", "tanh")),
        ("choice:true,false", (True, False)),
        ("choice:[64,64],[128]", ("[64, 64]", "[128]")),
    ],
)
def test_forms(text: str, ends: tuple[object, ...]) -> None:
    found = Distribution.parse(text).ends()
    assert found == ends
    assert [type(v) for v in found] == [type(v) for v in ends]


def test_mutation_by_a_factor_stays_within_the_bounds() -> None:
    uniform, whole = Distribution.parse("uniform:0.9:0.99"), Distribution.parse("int:1:8")
    assert uniform.bounded(0.95 * 1.2) == 0.99
    assert uniform.bounded(0.95) == 0.95
    assert whole.bounded(9) == 8
    assert isinstance(whole.bounded(3.4), int)
    assert Distribution.parse("choice:a,b").bounded("a") == "a"


def _population(*words: str, **settings: str) -> TuneConfig:
    return TuneConfig(recipe("quickstart"), words, pbt=PBTConfig(**settings))


def _check_mutable(config: RunConfig, *words: str) -> None:
    check_space(TuneConfig(config, words, pbt=PBTConfig()))


def _check_searchable(config: RunConfig, *words: str) -> None:
    check_space(TuneConfig(config, words, search=SearchConfig()))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "nothing to tune"),
        ("ppo.lr", "expected KEY=DISTRIBUTION"),
        ("=uniform:0:1", "expected KEY=DISTRIBUTION"),
        ("ppo.lr=loguniform:1e-5:1e-2 ppo.lr=uniform:1e-5:1e-2", "given twice"),
        ("ppo.lr=", "--mutate ppo.lr: distribution '': expected uniform:a:b"),
        *((f"ppo.lr=uniform:{b}", "finite numbers with a") for b in ("1", "a:b", "2:1", "nan:1")),
        ("ppo.lr=uniform:0:inf", "finite numbers with a below b, as in uniform"),
        ("ppo.lr=int:1:2.5", "whole numbers"),
        ("ppo.lr=loguniform:0:1", "numbers above 0"),
        *((f"ppo.lr=choice:{values}", "two or more different") for values in ("1", "1,1", "a,,b")),
    ],
)
def test_malformed_words_are_refused_in_one_line(words: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        space_of(_population(*words.split()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("recipe_name", "word", "says"),
    [
        ("quickstart", "ppo.learning_rate=uniform:1e-5:1e-2", "unknown key"),
        ("quickstart", "dagger.lr=uniform:1e-5:1e-2", "no section"),
        ("quickstart", "num_envs=int:8:64", r"cannot change .* ppo.lr, .*'distrlcc tune search'"),
        ("quickstart", "ppo.gamma=uniform:0.9:1.1", "gamma is 1.1"),
        ("imitation", "dagger.capacity=int:1000:2000", "can: dagger.lr"),
        ("distrlcc", "dagger.lr=uniform:1e-5:1e-2", "--set dagger.lr_schedule=none"),
    ],
)
def test_what_cannot_change_while_a_member_trains(recipe_name: str, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _check_mutable(recipe(recipe_name), word)


@pytest.mark.parametrize("key", ["env.reward.delay_weight", "total_steps", "actors.max_lag"])
def test_what_would_make_trials_incomparable(key: str) -> None:
    with pytest.raises(ConfigError, match=r"give it with --set"):
        _check_searchable(recipe("quickstart"), f"{key}=int:1:9")


def test_what_can_be_tuned() -> None:
    for section, names in MUTABLE.items():
        config = recipe({"ppo": "quickstart", "dagger": "imitation"}[section])
        for name in names.split():
            whole = name in ("minibatch_size", "num_epochs")
            low = "1:2" if name == "vtrace_rho" else "0.5:0.9"
            kind = "int:1:8" if whole else f"uniform:{low}"
            _check_mutable(config, f"{section}.{name}={kind}")
    words = "network.kind=choice:mlp,lstm network.hidden=choice:[32],[64,64] num_envs=int:8:9"
    _check_searchable(recipe("quickstart"), *words.split())


def test_values_reach_the_configuration() -> None:
    values = {"ppo.lr": 1.25e-05, "network.hidden": "[32, 32]", "ppo.use_critic": True}
    config = with_values(recipe("quickstart"), values)
    assert config.ppo is not None
    assert (config.ppo.lr, config.network.hidden) == (1.25e-05, (32, 32))


SPACE = ("ppo.lr=loguniform:1e-5:1e-2", "ppo.num_epochs=int:1:4")


def test_explored_values_stay_within_bounds() -> None:
    explore = explorer(_population(*SPACE))
    assert explore({"ppo.lr": 1.2e-2, "ppo.num_epochs": 5}) == {"ppo.lr": 1e-2, "ppo.num_epochs": 4}


def test_an_own_function_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_explore.py").write_text(
        "def fixed(values):\n    return values | {'ppo.lr': 5e-4}\n"
        "def nothing(values):\n    return None\n"
        "def bad(values):\n    return values | {'ppo.lr': -1.0}\n"
    )
    monkeypatch.chdir(tmp_path)
    values = {"ppo.lr": 1e-3, "ppo.num_epochs": 2}
    fixed = explorer(_population(*SPACE, explore="own_explore:fixed"))
    assert fixed(values)["ppo.lr"] == 5e-4
    for name, says in (("nothing", "expected a dictionary"), ("bad", "lr is -1")):
        with pytest.raises(ConfigError, match=says):
            explorer(_population(*SPACE, explore=f"own_explore:{name}"))(values)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own", "expected package.module:function"),
        ("no_such_module:f", "cannot import"),
        ("math:no_such", "no function"),
        ("math:pi", "no function"),
    ],
)
def test_paths_that_lead_nowhere(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_function(path)
