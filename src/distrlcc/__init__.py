"""Reinforcement learning for network congestion control.

In a notebook or a program, ``import distrlcc`` has what docs/python.md describes; each name is
imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("Flow", "Link", "Scenario"), "distrlcc.sim.scenario"),
    **dict.fromkeys(
        (
            *("Callbacks", "FlowResult", "Policy", "Scores", "evaluate", "load_policy"),
            *("make_env", "make_vec", "report", "simulate", "train"),
        ),
        "distrlcc.library",
    ),
}
__all__ = [
    "Callbacks",
    "Flow",
    "FlowResult",
    "Link",
    "Policy",
    "Scenario",
    "Scores",
    "evaluate",
    "load_policy",
    "make_env",
    "make_vec",
    "report",
    "simulate",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'distrlcc' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
