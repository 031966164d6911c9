"""Which member a member copies, and when a resumed population is looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from distrlcc.recipes.registry import recipe
from distrlcc.tune.tune_config import PBTConfig, TuneConfig

pytest.importorskip("ray", reason="Ray is not installed: pip install 'distrlcc[ray]'")

WORDS = ("ppo.lr=loguniform:1e-5:1e-2",)


class Controller:
    """What the scheduler asks Ray Tune for."""

    search_alg = None

    def __init__(self) -> None:
        self.trials: list[Any] = []
        self.marked: list[Any] = []
        self._mark_trial_to_checkpoint = self.marked.append
        self._schedule_trial_save = lambda trial, result: f"checkpoint of {trial}"

    def get_trials(self) -> list[Any]:
        return self.trials

    get_live_trials = get_trials

    def pause_trial(self, trial: Any, should_checkpoint: bool) -> None:
        """Stop it."""


def _population(controller: Controller, count: int, **settings: Any) -> Any:
    from ray.tune.experiment import Trial

    from distrlcc.tune.ray_tune import Population

    config = TuneConfig(recipe("quickstart"), WORDS, pbt=PBTConfig(log_config=False, **settings))
    population = Population(config)
    population.set_search_properties("score", "max")
    for number in range(count):
        trial = Trial("member", config={"ppo.lr": 1e-3 * (1 + number)}, stub=True)
        trial.trial_id, trial.custom_trial_name = f"{number}", f"member-{number:05}"
        controller.trials.append(trial)
    return population


@pytest.mark.parametrize(("best", "copies"), [(20, False), (40, True), (60, True)])
def test_a_member_that_is_behind_is_not_copied(best: int, copies: bool) -> None:
    controller = Controller()
    population = _population(controller, 2)
    for trial in controller.trials:
        population.on_trial_add(controller, trial)
    bad, good = controller.trials
    for trial, update, score in ((bad, 20, 0.0), (good, best, 1.0), (bad, 40, 0.0)):
        population.on_trial_result(controller, trial, {"update": update, "score": score})
    assert (bad.config["ppo.lr"] != 1e-3) is copies
    assert controller.marked == ([bad] if copies else [])


@pytest.mark.parametrize("reported", [1, 2])
def test_a_resumed_population_does_not_leave_out_a_look(reported: int) -> None:
    controller = Controller()
    population = _population(controller, 3, synch=True)
    found = [{"update": 20, "score": score} for score in (2.0, 1.0, 0.0)]
    for trial, metrics in zip(controller.trials[:reported], found, strict=False):
        checkpoint = SimpleNamespace(checkpoint="kept", metrics=metrics)
        trial.run_metadata.checkpoint_manager.register_checkpoint(checkpoint)
    for trial in controller.trials:
        population.on_trial_add(controller, trial)
    for trial, metrics in list(zip(controller.trials, found, strict=True))[reported:]:
        population.on_trial_result(controller, trial, metrics)
    assert controller.trials[-1].config["ppo.lr"] != 3e-3  # the worst has copied the best
    assert controller.trials[0].config["ppo.lr"] == 1e-3
