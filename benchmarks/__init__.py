"""Measurements that are not shipped: `python -m benchmarks --help`."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any


def several(low: float, high: float, *, whole: bool = True) -> Callable[[str], list[Any]]:
    """Return an argument type: different numbers from ``low`` to ``high``, as ``1,2,4``."""

    def parse(text: str) -> list[Any]:
        try:
            values = [int(word) if whole else float(word) for word in text.split(",") if word]
        except ValueError:
            values = [low - 1.0]
        if not all(low <= value <= high for value in values) or len(set(values)) < len(values):
            kind = "whole numbers" if whole else "numbers"
            raise ArgumentTypeError(
                f"{text!r}: expected different {kind} from {low:g} to {high:g}, as in 1,2"
            )
        return sorted(values)

    return parse
