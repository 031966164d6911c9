from __future__ import annotations

from pathlib import Path

import pytest

from distrlcc.errors import ConfigError
from distrlcc.recipes.registry import recipe
from distrlcc.tune.explore import Explore, load_function
from distrlcc.tune.space import Space

SPACE = Space.parse(["ppo.lr=loguniform:1e-5:1e-2", "ppo.num_epochs=int:1:4"], "--mutate")


def test_values_stay_within_bounds() -> None:
    explore = Explore(SPACE, recipe("quickstart"))
    assert explore({"ppo.lr": 1.2e-2, "ppo.num_epochs": 5}) == {"ppo.lr": 1e-2, "ppo.num_epochs": 4}


def test_an_own_function_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_explore.py").write_text(
        "def fixed(values):\n    return values | {'ppo.lr': 5e-4}\n"
        "def nothing(values):\n    return None\n"
        "def bad(values):\n    return values | {'ppo.lr': -1.0}\n"
    )
    monkeypatch.chdir(tmp_path)
    values = {"ppo.lr": 1e-3, "ppo.num_epochs": 2}
    config = recipe("quickstart")
    assert Explore(SPACE, config, "own_explore:fixed")(values)["ppo.lr"] == 5e-4
    for name, says in (("nothing", "expected a dictionary"), ("bad", "lr is -1")):
        with pytest.raises(ConfigError, match=says):
            Explore(SPACE, config, f"own_explore:{name}")(values)


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
