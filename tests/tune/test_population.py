"""Whom a member copies."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from distrlcc.recipes.registry import recipe
from distrlcc.tune.space import parse_space
from distrlcc.tune.tune_config import PBTConfig, TuneConfig

pytest.importorskip("ray", reason="Ray is not installed: pip install 'distrlcc[ray]'")


@dataclass(eq=False)
class _Trial:
    run_metadata: Any


@pytest.mark.parametrize(
    ("own", "other", "copies"), [(20, 20, True), (20, 40, True), (40, 20, False)]
)
def test_a_member_that_is_behind_is_not_copied(
    monkeypatch: pytest.MonkeyPatch, own: int, other: int, copies: bool
) -> None:
    from ray.tune.schedulers import PopulationBasedTraining

    from distrlcc.tune.ray_tune import Population

    words = ("ppo.lr=loguniform:1e-5:1e-2",)
    config = TuneConfig(run=recipe("quickstart"), space=words, pbt=PBTConfig())
    population = Population(config, parse_space(words, "--mutate"))
    copied: list[Any] = []
    monkeypatch.setattr(
        PopulationBasedTraining, "_exploit", lambda _, *arguments: copied.append(arguments)
    )
    metadata = SimpleNamespace(invalidate_cache=lambda: None)
    worst, best = _Trial(metadata), _Trial(metadata)
    marked: list[Any] = []
    controller = SimpleNamespace(_mark_trial_to_checkpoint=marked.append)
    population._trial_state = {
        worst: SimpleNamespace(last_train_time=own),
        best: SimpleNamespace(last_train_time=other),
    }
    population._exploit(controller, worst, best)
    assert copied == ([(controller, worst, best)] if copies else [])
    assert marked == ([worst] if copies else [])
