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
    notes = {"utilisation": 0.97, "seeds": [1, 2]}
    return PolicyFile(spec, random_arrays(spec, 0.5), "argmax", notes)


def random_arrays(spec: PolicySpec, spread: float) -> dict[str, np.ndarray]:
    """Return weights at random."""
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.normal(0.0, spread, shape).astype(np.float32)
        for name, shape in expected_shapes(spec).items()
    }
    arrays["normalizer.std"] = np.abs(arrays["normalizer.std"]) + np.float32(0.5)
    return arrays
