"""What can be tuned, what values are drawn from, and what mutation makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.tune.space import (
    MUTABLE,
    Distribution,
    check_space,
    explorer,
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


def _population(*words: str, name: str = "quickstart", **settings: Any) -> TuneConfig:
    return TuneConfig(recipe(name), words, pbt=PBTConfig(**settings))


def _search(*words: str) -> TuneConfig:
    return TuneConfig(recipe("quickstart"), words, search=SearchConfig())


LR = "lr=uniform:1e-5:1e-2"
REFUSED = [
    # malformed words
    (_population(), "nothing to tune"),
    (_population("ppo.lr"), "expected KEY=DISTRIBUTION"),
    (_population("=uniform:0:1"), "expected KEY=DISTRIBUTION"),
    (_population("ppo.lr=loguniform:1e-5:1e-2", f"ppo.{LR}"), "given twice"),
    (_population("ppo.lr="), "--mutate ppo.lr: distribution '': expected uniform:a:b"),
    *((_population(f"ppo.lr=uniform:{b}"), "numbers with a") for b in ("1", "a:b", "2:1", "nan:1")),
    (_population("ppo.lr=uniform:0:inf"), "finite numbers with a below b, as in uniform"),
    (_population("ppo.lr=int:1:2.5"), "whole numbers"),
    (_population("ppo.lr=loguniform:0:1"), "numbers above 0"),
    *((_population(f"ppo.lr=choice:{c}"), "two or more different") for c in ("1", "1,1", "a,,b")),
    # what cannot change while a member trains
    (_population(f"ppo.learning_{LR}"), "unknown key"),
    (_population(f"dagger.{LR}"), "no section"),
    (_population("num_envs=int:8:64"), r"cannot change .* ppo.lr, .*'distrlcc tune search'"),
    (_population("ppo.gamma=uniform:0.9:1.1"), "gamma is 1.1"),
    (_population("dagger.capacity=int:1000:2000", name="imitation"), "can: dagger.lr"),
    (_population(f"dagger.{LR}", name="distrlcc"), "set dagger.lr_schedule=none"),
    (
        replace(
            _population(f"ppo.{LR}"), run=override(recipe("quickstart"), ["ppo.desired_kl=0.01"])
        ),
        "ppo.desired_kl is 0.01: expected None, as a rate that adapts",
    ),
    # what would make trials incomparable
    (_search("env.reward.delay_weight=int:1:9"), "give it with --set"),
    (_search("total_steps=int:1:9"), "give it with --set"),
    (_search("actors.max_lag=int:1:9"), "give it with --set"),
]


@pytest.mark.parametrize(("config", "says"), REFUSED, ids=lambda v: str(getattr(v, "space", v)))
def test_what_cannot_be_tuned_is_refused_in_one_line(config: TuneConfig, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check_space(config)
    assert "\n" not in str(caught.value)


def test_what_can_be_tuned() -> None:
    for section, names in MUTABLE.items():
        tuned = {"ppo": "quickstart", "dagger": "imitation"}[section]
        for name in names.split():
            whole = name in ("minibatch_size", "num_epochs")
            low = "1:2" if name == "vtrace_rho" else "0.5:0.9"
            kind = "int:1:8" if whole else f"uniform:{low}"
            config = _population(f"{section}.{name}={kind}", name=tuned)
            # With what makes it count.
            on = ["ppo.use_kl_loss=true", "ppo.use_vtrace=true"] if section == "ppo" else []
            check_space(replace(config, run=override(config.run, on)))
    words = "network.kind=choice:mlp,lstm network.hidden=choice:[32],[64,64] num_envs=int:8:9"
    check_space(_search(*words.split()))


def test_values_reach_the_configuration() -> None:
    values = {"ppo.lr": 1.25e-05, "network.hidden": "[32, 32]", "ppo.use_critic": True}
    config = with_values(recipe("quickstart"), values)
    assert config.ppo is not None
    assert (config.ppo.lr, config.network.hidden) == (1.25e-05, (32, 32))


SPACE = ("ppo.lr=loguniform:1e-5:1e-2", "ppo.num_epochs=int:1:4")


def test_explored_values_stay_within_bounds_and_an_own_function_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_explore.py").write_text(
        "def fixed(values):\n    return values | {'ppo.lr': 5e-4}\n"
        "def nothing(values):\n    return None\n"
        "def bad(values):\n    return values | {'ppo.lr': -1.0}\n"
    )
    monkeypatch.chdir(tmp_path)
    values = {"ppo.lr": 1.2e-2, "ppo.num_epochs": 5}
    bounded = {"ppo.lr": 1e-2, "ppo.num_epochs": 4}
    assert explorer(_population(*SPACE))(values) == bounded
    fixed = explorer(_population(*SPACE, explore="own_explore:fixed"))
    assert fixed(values)["ppo.lr"] == 5e-4
    for name, says in (("nothing", "expected a dictionary"), ("bad", "lr is -1")):
        with pytest.raises(ConfigError, match=says):
            explorer(_population(*SPACE, explore=f"own_explore:{name}"))(values)
    chosen = explorer(_population("ppo.lr=choice:1e-3,1e-4", explore="own_explore:fixed"))
    with pytest.raises(ConfigError, match=r"returned ppo.lr=0.0005: expected one of its choices"):
        chosen({"ppo.lr": 1e-3})
