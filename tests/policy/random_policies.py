"""Specs and policies with random weights."""

from typing import Any

import numpy as np

from distrlcc.policy.policy_file import PolicyFile
from distrlcc.policy.spec import PolicySpec, expected_shapes


def make_spec(**changes: Any) -> PolicySpec:
    values: dict[str, Any] = {
        "observation": "features",
        "observation_size": 5,
        "action": "ratios",
        "action_kind": "discrete",
        "action_size": 3,
        "hidden": (16, 8),
    }
    return PolicySpec(**{**values, **changes})


def make_policy(**changes: Any) -> PolicyFile:
    spec = make_spec(**changes)
    generator = np.random.default_rng(3)
    arrays = {
        name: generator.normal(0.0, 0.5, shape).astype(np.float32)
        for name, shape in expected_shapes(spec).items()
    }
    arrays["normalizer.std"] = np.abs(arrays["normalizer.std"]) + np.float32(0.5)
    return PolicyFile(spec, arrays, "argmax", {"utilisation": 0.97, "seeds": [1, 2]})
