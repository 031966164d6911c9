"""Settings: schedules by hand, and what is refused."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from distrlcc.errors import ConfigError
from distrlcc.learn.config import (
    AlarmConfig,
    DaggerConfig,
    GailConfig,
    ImitationConfig,
    PPOConfig,
    scheduled,
)
from distrlcc.learn.dagger import Dagger
from distrlcc.learn.ppo import PPO
from tests.learn.toys import make_spec


def test_schedules_are_linear_between_points() -> None:
    schedule, steps = ((10, 1.0), (20, 0.5), (100, 0.0)), (0, 10, 15, 20, 60, 100, 999)
    found = [scheduled(schedule, step, 7.0) for step in steps]
    assert found == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert scheduled(None, 5, 7.0) == 7.0
    assert scheduled(((3, 2.0),), 0, 7.0) == scheduled(((3, 2.0),), 9, 7.0) == 2.0


BAD: list[tuple[Any, str, Any, str]] = [
    (PPOConfig(), "minibatch_size", 0, "minibatch_size is 0: expected 1 or more"),
    (PPOConfig(), "num_epochs", 0, ""),
    (PPOConfig(), "gamma", 1.01, "gamma is 1.01: expected 0 to 1"),
    (PPOConfig(), "lr", 0.0, "lr is 0.0: expected more than 0"),
    (PPOConfig(), "entropy_coeff", -1.0, ""),
    (PPOConfig(), "use_critic", False, "use_gae is True: expected False, as it needs a critic"),
    *(
        (PPOConfig(), "lr_schedule", schedule, "lr_schedule is")
        for schedule in ((), ((5, 1.0), (4, 2.0)), ((-1, 1.0),), ((0, nan),), ((0, -1.0),))
    ),
    (PPOConfig(), "vtrace_rho", 0.0, ""),
    (PPOConfig(), "vtrace_rho", inf, "and finite"),
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
