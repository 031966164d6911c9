"""Policy files: what is written is read; what is damaged is refused; what is shipped is whole."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from distrlcc.errors import OutputError, PolicyFileError
from distrlcc.policy.policy_file import (
    FORMAT,
    PolicyFile,
    find_policy,
    load_policy,
    save_policy,
    shipped_policies,
)
from distrlcc.recipes.registry import RECIPES, recipe

MakePolicy = Callable[..., PolicyFile]


@pytest.fixture
def written(tmp_path: Path, make_policy: MakePolicy) -> Path:
    path = tmp_path / "policy.safetensors"
    save_policy(path, make_policy())
    return path


def _rewrite(path: Path, **metadata: str) -> None:
    header = {"spec": {}, "acting": "argmax", "notes": {}}
    values = {"format": FORMAT, "format_version": "1", "policy": json.dumps(header)}
    save_file(load_file(path), path, {**values, **metadata})


@pytest.mark.parametrize(
    "changes",
    [{}, {"kind": "lstm", "hidden": (32,), "action_size": 5}, {"action_kind": "continuous"}],
)
def test_round_trip(tmp_path: Path, make_policy: MakePolicy, changes: dict) -> None:
    policy = make_policy(**changes)
    path = tmp_path / "deep" / "policy.safetensors"
    save_policy(path, policy)
    again = load_policy(path)
    assert (again.spec, again.acting, again.notes) == (policy.spec, policy.acting, policy.notes)
    assert set(again.arrays) == set(policy.arrays)
    for name, array in policy.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    assert path.stat().st_size < 64_000
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_overwrites_whole_or_not_at_all(
    written: Path, make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        save_policy(written, make_policy(hidden=(4,)))
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match=r"no policy file at .*check the path"):
        load_policy(tmp_path / "absent")
    with pytest.raises(PolicyFileError, match="no policy file"):
        load_policy(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated(written: Path, keep: int) -> None:
    written.write_bytes(written.read_bytes()[:keep])
    with pytest.raises(PolicyFileError, match="truncated or not a policy file"):
        load_policy(written)


def test_foreign(written: Path) -> None:
    written.write_bytes(b"PK\x03\x04 a torch checkpoint is a zip file" * 40)
    with pytest.raises(PolicyFileError, match="truncated or not a policy file"):
        load_policy(written)
    save_file({"weight": np.zeros(3)}, written)
    with pytest.raises(PolicyFileError, match="not a distrlcc policy"):
        load_policy(written)


def test_another_version(written: Path) -> None:
    _rewrite(written, format_version="2")
    with pytest.raises(PolicyFileError, match="version '2', this distrlcc reads version 1"):
        load_policy(written)


@pytest.mark.parametrize("policy", ["{", "[]", "{}", '{"spec": {}, "acting": "", "notes": {}}'])
def test_damaged_header(written: Path, policy: str) -> None:
    _rewrite(written, policy=policy)
    with pytest.raises(PolicyFileError, match="damaged header"):
        load_policy(written)


def test_unknown_acting(written: Path, make_policy: MakePolicy) -> None:
    header = {"spec": make_policy().spec.to_dict(), "acting": "guess", "notes": {}}
    _rewrite(written, policy=json.dumps(header))
    with pytest.raises(PolicyFileError, match="'guess', expected 'argmax' or 'sample'"):
        load_policy(written)


def _changed(policy: PolicyFile, **arrays: np.ndarray | None) -> PolicyFile:
    changed = {**policy.arrays, **{k.replace("__", "."): v for k, v in arrays.items()}}
    return replace(policy, arrays={k: v for k, v in changed.items() if v is not None})


def test_missing_extra_misshaped_and_infinite(tmp_path: Path, make_policy: MakePolicy) -> None:
    policy = make_policy()
    for bad, words in (
        (_changed(policy, policy_head__bias=None), "lacks policy_head.bias"),
        (_changed(policy, log_std=np.zeros(3, np.float32)), "has log_std"),
        (
            _changed(policy, trunk__0__weight=np.zeros((16, 6), np.float32)),
            r"trunk.0.weight has shape \(16, 6\), its spec asks for \(16, 5\)",
        ),
        (_changed(policy, value_head__bias=np.array([np.nan], np.float32)), "not finite"),
    ):
        with pytest.raises(PolicyFileError, match=words):
            save_policy(tmp_path / "policy", bad)
    assert not list(tmp_path.iterdir())


def test_a_spec_of_another_shape_is_refused_on_loading(
    written: Path, make_policy: MakePolicy
) -> None:
    header = {"spec": make_policy(hidden=(16, 9)).spec.to_dict(), "acting": "argmax", "notes": {}}
    _rewrite(written, policy=json.dumps(header))
    with pytest.raises(PolicyFileError, match="its spec asks for"):
        load_policy(written)


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
