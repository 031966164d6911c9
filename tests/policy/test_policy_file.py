"""Policy files and specs: what is written is read, damage is refused, what is shipped is whole."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from distrlcc.config import from_dict
from distrlcc.errors import ConfigError, OutputError, PolicyFileError
from distrlcc.policy.policy_file import (
    FORMAT,
    find_policy,
    load_policy,
    save_policy,
    shipped_policies,
)
from distrlcc.policy.spec import PolicySpec
from distrlcc.recipes.registry import RECIPES, recipe
from tests.policy.random_policies import make_policy, make_spec


def test_an_older_file_without_a_checksum_is_read_with_a_line(written: Path) -> None:
    with safe_open(written, framework="numpy") as file:
        _rewrite(written, policy=file.metadata()["policy"])
    with pytest.warns(UserWarning, match="has no checksum"):
        assert load_policy(written).spec == make_policy().spec


def test_a_file_that_was_made_older_is_damaged(written: Path) -> None:
    with safe_open(written, framework="numpy") as file:
        metadata = file.metadata()
    _rewrite(written, policy=metadata["policy"], checksum=metadata["checksum"])
    with pytest.raises(PolicyFileError, match="its checksum is wrong"):
        load_policy(written)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    save_policy(path, make_policy())
    return path


def _rewrite(path: Path, **metadata: str) -> None:
    values = {"format": FORMAT, "format_version": "1", "policy": "{}"}
    save_file(load_file(path), path, {**values, **metadata})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kind": "lstm", "hidden": (32,), "action_size": 5},
        {"kind": "mingru", "hidden": (32,), "post_hidden": 16},
        {"action_kind": "continuous"},
    ],
)
def test_round_trip(tmp_path: Path, changes: Any) -> None:
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


def test_overwrites_whole_or_not_at_all(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        save_policy(written, make_policy(hidden=(4,)))
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


@pytest.mark.parametrize("keep", [0, 200, -1, None])
def test_truncated_or_foreign(written: Path, keep: int | None) -> None:
    foreign = b"PK\x03\x04 a torch checkpoint is a zip file" * 40
    written.write_bytes(foreign if keep is None else written.read_bytes()[:keep])
    with pytest.raises(PolicyFileError, match="truncated or not a policy file"):
        load_policy(written)


def _header(acting: str = "argmax", **changes: Any) -> str:
    spec = asdict(make_policy(**changes).spec)
    return json.dumps({"spec": spec, "acting": acting, "notes": {}})


@pytest.mark.filterwarnings("ignore:.*has no checksum")
@pytest.mark.parametrize("policy", ["{", "[]", "{}", '{"spec": {}, "acting": "", "notes": {}}'])
def test_damaged_header(written: Path, policy: str) -> None:
    _rewrite(written, policy=policy)
    with pytest.raises(PolicyFileError, match="damaged header"):
        load_policy(written)


@pytest.mark.filterwarnings("ignore:.*has no checksum")
def test_a_file_that_does_not_fit_is_refused(written: Path) -> None:
    for changes, words in (
        ({"format_version": "3"}, "version '3', this distrlcc reads version 2"),
        ({"policy": _header("guess")}, "acting = 'guess': expected one of 'argmax', 'sample'"),
        ({"policy": _header(hidden=(16, 9))}, "its spec asks for"),
    ):
        _rewrite(written, **changes)
        with pytest.raises(PolicyFileError, match=words):
            load_policy(written)
    save_file({"weight": np.zeros(3)}, written)
    with pytest.raises(PolicyFileError, match="not a distrlcc policy"):
        load_policy(written)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("policy_head.bias", None, "lacks policy_head.bias"),
        ("log_std", np.zeros(3, "f4"), "has log_std"),
        ("trunk.0.weight", np.zeros((16, 6), "f4"), r"\(16, 5\); .* older distrlcc: train it"),
        ("value_head.bias", np.array([np.nan], "f4"), "not finite"),
        ("normalizer.std", np.zeros(5, "f4"), "not above 0"),
    ],
)
def test_missing_extra_misshaped_and_infinite(
    tmp_path: Path, name: str, array: Any, words: str
) -> None:
    policy = make_policy()
    arrays = {k: v for k, v in {**policy.arrays, name: array}.items() if v is not None}
    with pytest.raises(PolicyFileError, match=words):
        save_policy(tmp_path / "policy", replace(policy, arrays=arrays))
    assert not list(tmp_path.iterdir())


SHIPPED = shipped_policies()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_is_whole_and_found_by_name_unless_a_file_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = find_policy(name)
    assert path == SHIPPED[name]
    notes = load_policy(path).notes
    assert "weights" in notes or math.isfinite(notes["held_out_reward"])  # a mean has no scoring
    assert path.with_suffix(".json").exists()
    assert path.stat().st_size < 220_000
    (tmp_path / name).write_bytes(b"")
    assert find_policy(name) == Path(name)
    file = tmp_path / "policy.safetensors"  # a file, and a run's folder
    file.write_bytes(b"")
    assert find_policy(str(file)) == find_policy(str(tmp_path)) == file


@pytest.mark.parametrize("name", sorted(set(SHIPPED) & set(RECIPES)))
def test_a_shipped_policy_is_what_its_recipe_trains(name: str) -> None:
    spec, config = load_policy(SHIPPED[name]).spec, recipe(name)
    assert (spec.observation, spec.action) == (config.env.observation, config.env.action)
    network, env = config.network, config.env
    assert (spec.kind, spec.hidden) == (network.kind, network.hidden)
    assert (spec.post_hidden, spec.activation) == (network.post_hidden, network.activation)
    assert (spec.pacing, spec.guard, spec.step_ms) == (env.pacing, env.guard, env.step_ms)


@pytest.mark.parametrize("name", ["nope", "a\0b"])
def test_what_is_not_there_is_said_in_one_line(name: str) -> None:
    for look_up in (find_policy, load_policy):
        with pytest.raises(PolicyFileError, match=r"no policy file at .*check the path"):
            look_up(name)


def _spec(values: dict[str, Any]) -> PolicySpec:
    return from_dict(PolicySpec, values, source="policy spec")


def test_json_round_trip_and_layers() -> None:
    spec = make_spec(
        kind="lstm",
        hidden=(16, 8),
        interval_rtts=1.0,
        options={"preference": "0.5", "delay_weights": "0.1 1"},
    )
    assert _spec(json.loads(json.dumps(asdict(spec)))) == spec
    assert (spec.dense, spec.state_size) == ((16,), 8)
    assert (make_spec().dense, make_spec().state_size) == ((16, 8), 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "gru"}, r"unknown network 'gru': did you mean mingru\?"),
        ({"action_kind": "both"}, "action_kind"),
        ({"activation": "gelu"}, "activation"),
        ({"hidden": ()}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
        ({"post_hidden": 4}, "post_hidden is 4: expected 0 to 0"),
        ({"observation_size": 0}, "observation_size"),
        ({"action_size": 1}, "action_size is 1"),
        ({"step_ms": 0.0}, "step_ms"),
        ({"layers": 2}, "unknown key 'layers'"),
    ],
)
def test_bad_values(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _spec(asdict(make_spec()) | changes)
