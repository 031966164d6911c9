"""Which member a member copies, and when a resumed population is looked at."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distrlcc.recipes.registry import recipe
from distrlcc.runs.stopper import Stopper
from distrlcc.tune.tune_config import PBTConfig, TuneConfig

pytest.importorskip("ray", reason="needs Ray (extra 'ray')")

WORDS = ("ppo.lr=loguniform:1e-5:1e-2",)


def _population(count: int, **settings: Any) -> tuple[Any, Any]:
    """Return a population, and what its scheduler asks Ray Tune for."""
    from ray.tune.experiment import Trial

    from distrlcc.tune.ray_tune import Population

    config = TuneConfig(recipe("quickstart"), WORDS, pbt=PBTConfig(log_config=False, **settings))
    population = Population(config)
    population.set_search_properties("score", "max")
    trials, marked, live = list[Any](), list[Any](), set[Any]()
    for number in range(count):
        trial = Trial("member", config={"ppo.lr": 1e-3 * (1 + number)}, stub=True)
        trial.trial_id, trial.custom_trial_name = f"{number}", f"member-{number:05}"
        trials.append(trial)
        live.add(trial)
    return population, SimpleNamespace(
        search_alg=None,
        trials=trials,
        marked=marked,
        get_trials=lambda: trials,
        get_live_trials=lambda: live,
        pause_trial=lambda trial, should_checkpoint: None,
        _mark_trial_to_checkpoint=marked.append,
        _schedule_trial_save=lambda trial, result: f"checkpoint of {trial}",
    )


@pytest.mark.parametrize("best", [20, 40, 60])
@pytest.mark.parametrize("looked", [True, False])
def test_the_best_member_is_copied_whatever_its_pace(best: int, looked: bool) -> None:
    population, controller = _population(2)
    for trial in controller.trials:
        population.on_trial_add(controller, trial)
    bad, good = controller.trials
    found = [(bad, 20, 0.0), (good, best, 1.0), (bad, 40, 0.0)]
    if not looked:  # the best one was not among the best when it was looked at: it came first
        found = [(good, best, 1.0), (bad, 40, 0.0)]
        saved = SimpleNamespace(checkpoint="saved", metrics={"update": best, "score": 1.0})
        good.run_metadata.checkpoint_manager.register_checkpoint(saved)
    for trial, update, score in found:
        population.on_trial_result(controller, trial, {"update": update, "score": score})
    assert bad.config["ppo.lr"] != 1e-3
    assert controller.marked == [bad]
    assert population._trial_state[bad].last_train_time == best


@pytest.mark.parametrize("reported", [1, 2])
def test_a_resumed_population_does_not_leave_out_a_look(reported: int) -> None:
    population, controller = _population(3, synch=True)
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


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("status", ["ERROR", "TERMINATED"])
def test_a_population_does_not_wait_for_a_member_that_is_gone(status: str, restored: bool) -> None:
    population, controller = _population(3, synch=True)
    found = [{"update": 20, "score": score} for score in (1.0, 0.0)]
    for trial, metrics in zip(controller.trials, found, strict=False):
        kept = SimpleNamespace(checkpoint="kept", metrics=metrics if restored else {})
        trial.run_metadata.checkpoint_manager.register_checkpoint(kept)
    for trial in controller.trials:
        population.on_trial_add(controller, trial)
    for trial, metrics in zip(controller.trials, found, strict=False):
        if not restored:
            population.on_trial_result(controller, trial, metrics)
        trial.set_status("PAUSED")
    *waiting, gone = controller.trials
    gone.set_status("RUNNING")
    assert population.choose_trial_to_run(controller) is None
    gone.set_status(status)
    assert population.choose_trial_to_run(controller) in waiting
    assert waiting[1].config["ppo.lr"] != 2e-3  # it has copied the other


def test_reports_may_be_farther_apart_than_looks() -> None:
    population, controller = _population(2, synch=True)
    for trial in controller.trials:
        population.on_trial_add(controller, trial)
    for update in (40, 80):
        for trial in controller.trials:
            population.on_trial_result(controller, trial, {"update": update, "score": 1.0})
            trial.set_status("PAUSED")
        assert population.choose_trial_to_run(controller) is not None


def test_a_member_that_is_started_again_does_not_wait() -> None:
    population, controller = _population(2, synch=True)
    member = controller.trials[0]
    population.on_trial_add(controller, member)
    kept = SimpleNamespace(checkpoint="kept", metrics={"update": 20, "score": 1.0})
    member.run_metadata.checkpoint_manager.register_checkpoint(kept)
    population.on_trial_add(controller, member)
    assert member.status == "PENDING"


@pytest.mark.parametrize(("status", "stops"), [("RUNNING", 15), ("TERMINATED", 0)])
def test_a_stop_after_the_last_member_is_done_is_none(status: str, stops: int) -> None:
    from distrlcc.tune import ray_tune

    heard = list[int]()
    _, controller = _population(2)
    for trial, each in zip(controller.trials, ("TERMINATED", status), strict=True):
        trial.set_status(each)
    stopper = Stopper()
    stopper.request(signal.SIGTERM)
    old = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    watch = ray_tune._Watch(cast(Any, None), stopper)
    before = ray_tune._WATCH.set(watch)
    try:
        ray_tune._Watcher().on_step_end(0, controller.trials)
    finally:
        ray_tune._WATCH.reset(before)
        signal.signal(signal.SIGUSR1, old)
    assert (watch.stopped, len(heard)) == (stops, int(stops > 0))
