"""Reinforcement learning for network congestion control; docs/python.md has what this offers."""

import importlib
from typing import Any

__version__ = "0.1.0"

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
    if name not in __all__:
        raise AttributeError(f"module 'distrlcc' has no attribute {name!r}")
    home = "sim.scenario" if name in ("Flow", "Link", "Scenario") else "library"
    return getattr(importlib.import_module(f"distrlcc.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
