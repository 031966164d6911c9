from __future__ import annotations

import pytest

from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.tune.space import MUTABLE, Space, with_values


def _space(*words: str) -> Space:
    return Space.parse(words, "--mutate")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "nothing to tune"),
        (("ppo.lr",), "expected KEY=DISTRIBUTION"),
        (("=uniform:0:1",), "expected KEY=DISTRIBUTION"),
        (("ppo.lr=loguniform:1e-5:1e-2", "ppo.lr=uniform:1e-5:1e-2"), "given twice"),
        (("ppo.lr=uniform:1",), "--mutate ppo.lr: distribution"),
    ],
)
def test_malformed_words(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _space(*words)


@pytest.mark.parametrize(
    ("recipe_name", "word", "says"),
    [
        ("quickstart", "ppo.learning_rate=uniform:1e-5:1e-2", "unknown key"),
        ("quickstart", "dagger.lr=uniform:1e-5:1e-2", "no section"),
        ("quickstart", "num_envs=int:8:64", r"cannot change .* ppo.lr, .*'distrlcc tune search'"),
        ("quickstart", "network.hidden=choice:[32],[64]", "cannot change"),
        ("quickstart", "ppo.reward_scale=uniform:0.1:1", "cannot change"),
        ("quickstart", "ppo.gamma=uniform:0.9:1.1", "gamma is 1.1"),
        ("quickstart", "ppo.lr=uniform:-1:1", "lr is -1"),
        ("quickstart", "ppo.num_epochs=uniform:1:3.5", "num_epochs"),
        ("imitation", "ppo.lr=uniform:1e-5:1e-2", "no section"),
        ("imitation", "dagger.capacity=int:1000:2000", "can: dagger.lr"),
        ("distrlcc", "dagger.lr=uniform:1e-5:1e-2", "--set dagger.lr_schedule=none"),
    ],
)
def test_what_cannot_change_while_a_member_trains(recipe_name: str, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _space(word).check_mutable(recipe(recipe_name))


@pytest.mark.parametrize(
    "word",
    ["env.reward.delay_weight=uniform:0:1", "held_out.links=int:1:9", "total_steps=int:1:9",
     "seed=int:0:9", "actors.max_lag=int:1:9"],
)  # fmt: skip
def test_what_would_make_trials_incomparable(word: str) -> None:
    with pytest.raises(ConfigError, match=r"give it with --set"):
        _space(word).check_searchable(recipe("quickstart"))


def test_what_can_be_tuned() -> None:
    for section, names in MUTABLE.items():
        config = recipe({"ppo": "quickstart", "dagger": "imitation"}[section])
        for name in names:
            whole = name in ("minibatch_size", "num_epochs")
            kind = (
                "int:1:8" if whole else "uniform:1:2" if name == "vtrace_rho" else "uniform:0.5:0.9"
            )
            _space(f"{section}.{name}={kind}").check_mutable(config)
    words = (
        "network.kind=choice:mlp,lstm",
        "network.hidden=choice:[32],[64,64]",
        "num_envs=int:8:9",
    )
    _space(*words).check_searchable(recipe("quickstart"))


def test_values_reach_the_configuration() -> None:
    values = {"ppo.lr": 1.25e-05, "network.hidden": "[32, 32]", "ppo.use_critic": True}
    config = with_values(recipe("quickstart"), values)
    assert config.ppo is not None
    assert (config.ppo.lr, config.network.hidden) == (1.25e-05, (32, 32))
