"""Trees of a run's state, compared."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

TINY: dict[str, Any] = {
    **{"num_envs": 4, "total_steps": 512, "ppo.rollout_length": 32, "network.hidden": [8]},
    **{"held_out.links": 2, "held_out.seconds": 0.5, "held_out.every": 2},
}
"""A run of seconds, as `distrlcc.train` takes it."""
CLOCK = ("seconds", "ring", "ring_used", "metrics_file")
"""What depends on the time that a run took."""


def same(a: Any, b: Any, skip: Collection[str] = (), place: str = "state") -> None:
    """Require two trees to be equal in types, shapes and bits, except what ``skip`` names.

    A tensor may also be compared with the array that it holds.
    """
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        a, b = np.asarray(a), np.asarray(b)
    assert type(a) is type(b), place
    if isinstance(a, dict):
        assert list(a) == list(b), place
        for key in a:
            if key not in skip:
                same(a[key], b[key], skip, f"{place}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), place
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, skip, f"{place}[{index}]")
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), place
        assert torch.equal(a, b), place
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), place
        assert a.tobytes() == b.tobytes(), place
    elif isinstance(a, float) and math.isnan(a):
        assert math.isnan(b), place
    else:
        assert a == b, place
