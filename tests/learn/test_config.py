"""Settings: schedules by hand, and what is refused."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from distrlcc.config import override
from distrlcc.errors import ConfigError
from distrlcc.learn.config import (
    AlarmConfig,
    DaggerConfig,
    GailConfig,
    ImitationConfig,
    PPOConfig,
    check_schedule,
    scheduled,
)
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.ppo import PPO
from distrlcc.recipes.registry import quickstart
from tests.learn.toys import make_spec


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
    "schedule", [(), ((5, 1.0), (5, 2.0)), ((-1, 1.0),), ((0, nan),), ((0, -1.0),)]
)
def test_bad_schedules(schedule: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ConfigError, match="lr_schedule is"):
        check_schedule("lr_schedule", schedule)


BAD: list[tuple[Any, str, Any, str]] = [
    (PPOConfig(), "minibatch_size", 0, "minibatch_size is 0: expected 1 or more"),
    (PPOConfig(), "num_epochs", 0, ""),
    (PPOConfig(), "gamma", 1.01, "gamma is 1.01: expected 0 to 1"),
    (PPOConfig(), "lr", 0.0, "lr is 0.0: expected more than 0"),
    (PPOConfig(), "lr", nan, ""),
    (PPOConfig(), "entropy_coeff", -1.0, ""),
    (PPOConfig(), "use_critic", False, "use_gae needs a critic"),
    (PPOConfig(), "lr_schedule", ((5, 1.0), (4, 1.0)), ""),
    (PPOConfig(), "vtrace_rho", 0.0, ""),
    (PPOConfig(), "vtrace_rho", inf, "and finite"),
    (PPOConfig(), "vtrace_rho", nan, ""),
    (PPOConfig(), "vtrace_c", -1.0, ""),
    (PPOConfig(), "vtrace_c", 2.0, "vtrace_rho 1.0: expected vtrace_c to be vtrace_rho or less"),
    (DaggerConfig(), "minibatch_size", 0, ""),
    (DaggerConfig(), "capacity", 8, "at least one sequence of 16"),
    (DaggerConfig(), "lr", -1.0, ""),
    (DaggerConfig(), "l2", -1.0, ""),
    (ImitationConfig(), "lr", 0.0, "lr is 0.0"),
    (ImitationConfig(), "minibatch_size", 8, "expected 16 or more, one sequence"),
    (ImitationConfig(), "validation_share", 0.95, "validation_share is 0.95"),
    (ImitationConfig(), "burn_in", -1, "burn_in is -1"),
    (ImitationConfig(), "lr_schedule", ((3, 1.0), (3, 1.0)), ""),
    (GailConfig(), "steps", 0, ""),
    (GailConfig(), "hidden", (), "expected one width or more"),
    (GailConfig(), "lr", 0.0, ""),
    (GailConfig(), "gradient_penalty", -1.0, ""),
    (AlarmConfig(), "patience", 0, "patience is 0: expected 1 or more"),
    (AlarmConfig(), "keep_every", 0, ""),
    (AlarmConfig(), "most_restores", -1, ""),
    (AlarmConfig(), "entropy_factor", 0.5, "expected 1 to 1000"),
    (AlarmConfig(), "entropy_factor", inf, ""),
    (AlarmConfig(), "entropy_floor", -1.0, ""),
    (AlarmConfig(), "silent_share_bound", 1.5, ""),
    (AlarmConfig(), "entropy_bound", nan, ""),
    (AlarmConfig(), "decay_updates", 0, ""),
]


@pytest.mark.parametrize(("config", "name", "value", "words"), BAD)
def test_bad_settings(config: Any, name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words or name):
        replace(config, **{name: value})


@pytest.mark.parametrize(("learner", "config"), [(PPO, PPOConfig), (Dagger, DaggerConfig)])
def test_a_minibatch_holds_a_sequence(learner: Any, config: Any) -> None:
    small = config(minibatch_size=15, sequence_length=16)
    learner(small, make_spec())
    with pytest.raises(ConfigError, match="minibatch_size is 15: expected 16 or more"):
        learner(small, make_spec(kind="lstm", hidden=(8,)))
