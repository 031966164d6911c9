"""Piecewise-linear schedules by environment step."""

from __future__ import annotations

import math
from itertools import pairwise

from distrlcc.errors import ConfigError

Schedule = tuple[tuple[int, float], ...]
"""Points ``(environment step, value)`` in order: linear between them, constant outside."""


def scheduled(schedule: Schedule | None, step: int, constant: float) -> float:
    """Return a schedule's value at an environment step; ``constant`` where there is no schedule."""
    if not schedule:
        return constant
    before = schedule[0]
    for after in schedule:
        if step < after[0]:
            if after is before:
                return after[1]
            share = (step - before[0]) / (after[0] - before[0])
            return before[1] + share * (after[1] - before[1])
        before = after
    return before[1]


def check_schedule(name: str, schedule: Schedule | None) -> None:
    """Check that steps rise from 0 on and values are finite and not negative.

    Raises:
        ConfigError: If they do not.
    """
    if schedule is None:
        return
    steps = [point[0] for point in schedule]
    fine = (
        len(steps) > 0
        and steps[0] >= 0
        and all(a < b for a, b in pairwise(steps))
        and all(math.isfinite(value) and value >= 0 for _, value in schedule)
    )
    if not fine:
        raise ConfigError(
            f"{name} is {schedule!r}: expected one or more (environment step, value) points with "
            "rising steps and finite values of 0 or more"
        )
