"""A spec survives JSON and refuses what does not fit."""

import json
from typing import Any

import pytest

from distrlcc.errors import ConfigError
from distrlcc.policy.spec import PolicySpec
from tests.policy.random_policies import make_spec


def test_json_round_trip_and_layers() -> None:
    spec = make_spec(kind="lstm", hidden=(16, 8), interval_rtts=1.0, options={"ewma": "0.125"})
    assert PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert (spec.dense, spec.state_size) == ((16,), 8)
    assert (make_spec().dense, make_spec().state_size) == ((16, 8), 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "gru"}, "kind = 'gru': expected one of 'mlp', 'lstm'"),
        ({"action_kind": "both"}, "action_kind"),
        ({"activation": "gelu"}, "activation"),
        ({"hidden": ()}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
        ({"observation_size": 0}, "observation_size"),
        ({"action_size": 1}, "action_size is 1"),
        ({"step_ms": 0.0}, "step_ms"),
    ],
)
def test_bad_values(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PolicySpec.from_dict(make_spec().to_dict() | changes)


def test_bad_keys() -> None:
    with pytest.raises(ConfigError, match="unknown key 'layers'"):
        PolicySpec.from_dict(make_spec().to_dict() | {"layers": 2})
    with pytest.raises(ConfigError, match="observation_size"):
        PolicySpec.from_dict({"observation": "features"})
