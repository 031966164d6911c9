import math
from pathlib import Path

import pytest

from distrlcc.errors import PolicyFileError
from distrlcc.policy.policy_file import find_policy, load_policy, shipped_policies
from distrlcc.recipes.registry import RECIPES, recipe

SHIPPED = shipped_policies()


def test_a_file_and_a_runs_folder_are_found(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(b"")
    assert find_policy(str(file)) == file
    assert find_policy(str(tmp_path)) == file


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_is_found_by_name_unless_a_file_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_policy(name) == SHIPPED[name]
    (tmp_path / name).write_bytes(b"")
    assert find_policy(name) == Path(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_is_whole_and_small(name: str) -> None:
    assert math.isfinite(load_policy(SHIPPED[name]).notes["held_out_reward"])
    assert SHIPPED[name].with_suffix(".json").exists()
    assert SHIPPED[name].stat().st_size < 160_000


@pytest.mark.parametrize("name", sorted(set(SHIPPED) & set(RECIPES)))
def test_a_shipped_policy_is_what_its_recipe_trains(name: str) -> None:
    spec, config = load_policy(SHIPPED[name]).spec, recipe(name)
    assert (spec.observation, spec.action) == (config.env.observation, config.env.action)
    assert (spec.kind, spec.hidden) == (config.network.kind, config.network.hidden)


@pytest.mark.parametrize("name", ["nope", "a\0b"])
def test_what_is_not_there_is_said_in_one_line(name: str) -> None:
    with pytest.raises(PolicyFileError, match="no policy file at"):
        find_policy(name)
