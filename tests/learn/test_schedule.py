"""Schedules by hand."""

import pytest

from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.learn.config import check_schedule, scheduled
from distrlcc.recipes.quickstart import quickstart


@pytest.mark.parametrize(
    ("step", "value"),
    [(0, 1.0), (10, 1.0), (15, 0.75), (20, 0.5), (60, 0.25), (100, 0.0), (999, 0)],
)
def test_linear_between_points(step: int, value: float) -> None:
    schedule = ((10, 1.0), (20, 0.5), (100, 0.0))
    assert scheduled(schedule, step, 7.0) == pytest.approx(value)


def test_constant() -> None:
    assert scheduled(None, 5, 7.0) == 7.0
    assert scheduled(((3, 2.0),), 0, 7.0) == scheduled(((3, 2.0),), 9, 7.0) == 2.0


def test_steps_are_written_as_people_write_a_million() -> None:
    config = override(quickstart(), ["ppo.lr_schedule=[[0, 1e-3], [1e6, 1e-4]]"])
    assert config.ppo is not None
    assert config.ppo.lr_schedule == ((0, 1e-3), (1_000_000, 1e-4))
    assert config == override(quickstart(), ["ppo.lr_schedule=[[0, 1e-3], [1000000, 1e-4]]"])


@pytest.mark.parametrize(
    "schedule", [(), ((5, 1.0), (5, 2.0)), ((-1, 1.0),), ((0, float("nan")),), ((0, -1.0),)]
)
def test_bad_schedules(schedule: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ConfigError, match="lr_schedule is"):
        check_schedule("lr_schedule", schedule)
