"""How Ray Tune chooses and watches trials: PBT, Optuna's samplers, ASHA, and our callback.

Imports Ray: import this module where Ray is known to be installed.
"""

from __future__ import annotations

import random
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search.basic_variant import BasicVariantGenerator

from distrlcc.runs.stopper import Stopper
from distrlcc.tune.member import POLICY, REPORT, member_number
from distrlcc.tune.outcome import Recorder
from distrlcc.tune.report import decode
from distrlcc.tune.space import Space, explorer
from distrlcc.tune.tune_config import SAMPLERS, TuneConfig, steps_per_update

SNAPSHOT_SECONDS = 1.0
"""Time between two snapshots of Ray Tune's state."""


def chooser(config: TuneConfig, space: Space) -> dict[str, Any]:
    """Return the arguments of Ray's ``TuneConfig`` that choose trials and stop them."""
    seed = config.run.seed % 2**32
    if config.pbt is not None:
        generator = BasicVariantGenerator(random_state=seed)
        return {"scheduler": Population(config, space), "search_alg": generator}
    search = config.search
    assert search is not None
    chosen: dict[str, Any] = {"max_concurrent_trials": search.concurrent or None}
    if search.asha:  # in steps, since updates of trials with different rollouts are not alike
        total = config.run.total_steps
        chosen["scheduler"] = ASHAScheduler(
            time_attr="steps",
            max_t=total,
            grace_period=min(search.grace * steps_per_update(config.run), total),
            reduction_factor=search.reduction,
            brackets=search.brackets,
        )
    if search.sampler == "random":
        chosen["search_alg"] = BasicVariantGenerator(random_state=seed)
        return chosen
    import optuna  # noqa: PLC0415 - an optional extra, slow to import
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = getattr(optuna.samplers, SAMPLERS[search.sampler])(seed=seed)
    return chosen | {"search_alg": OptunaSearch(sampler=sampler)}


class Population(PopulationBasedTraining):
    """Ray's population-based training, with draws that a seed decides and a state that survives.

    Ray's own scheduler draws from Python's global generator, and begins anew when a tuner is
    restored: where members are looked at together, it then waits for ever.
    """

    def __init__(self, config: TuneConfig, space: Space) -> None:
        """Take a tuner's configuration."""
        pbt = config.pbt
        assert pbt is not None
        self._seed = config.run.seed
        super().__init__(
            time_attr=pbt.time_attr,
            perturbation_interval=pbt.interval,
            burn_in_period=pbt.burn_in,
            hyperparam_mutations={key: space[key].mutation() for key in space},
            quantile_fraction=pbt.quantile,
            resample_probability=pbt.resample,
            perturbation_factors=pbt.factors,
            custom_explore_fn=explorer(space, config.run, pbt.explore),
            log_config=pbt.log_config,
            require_attrs=pbt.require_attrs,
            synch=pbt.synch,
        )

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a member; a restored one with score and time of what it goes on from."""
        super().on_trial_add(tune_controller, trial)
        # Keep one order, however they come: where scores are equal, it decides.
        ordered = sorted(self._trial_state.items(), key=lambda item: item[0].trial_id)
        self._trial_state = dict(ordered)
        # Restore its state from its last checkpoint.
        checkpoint = trial.latest_checkpoint_result
        result = checkpoint.metrics if checkpoint is not None else {}
        if self._time_attr not in result or self._metric not in result or trial.is_finished():
            return
        state = self._trial_state[trial]
        time_ = result[self._time_attr]
        self._save_trial_state(state, time_, result, trial)
        state.last_perturbation_time = time_
        if not self._synch:
            return
        # Let it wait for the next look at all members.
        trial.set_status(Trial.PAUSED)  # Ray starts pending ones, even those that shall wait
        times = [s.last_train_time for t, s in self._trial_state.items() if not t.is_finished()]
        first = max(self._perturbation_interval, self._burn_in_period)
        looks = max((min(times) - first) // self._perturbation_interval + 1, 0)
        self._next_perturbation_sync = first + looks * self._perturbation_interval

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decide as Ray does, with draws that depend on the seed and on when, not on what ran."""
        drawn = f"{self._seed}/{result.get(self._time_attr)}"
        if not self._synch:
            drawn += f"/{member_number(str(trial))}"
        before = random.getstate()
        random.seed(drawn)
        try:
            return str(super().on_trial_result(tune_controller, trial, result))
        finally:
            random.setstate(before)

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        """Copy as Ray does, and let the next snapshot know: Ray's has the values alone.

        A member that is behind is not copied: its updates would be made again, and once more if the
        copy is no better.
        """
        own, other = self._trial_state[trial], self._trial_state[trial_to_clone]
        if (other.last_train_time or 0) < (own.last_train_time or 0):
            return
        super()._exploit(tune_controller, trial, trial_to_clone)
        trial.run_metadata.invalidate_cache()
        tune_controller._mark_trial_to_checkpoint(trial)


class Interrupted(KeyboardInterrupt):
    """The user or the system said stop, and Ray Tune's state was saved after that."""


@dataclass
class Watch:
    """What a tuner that runs is watched with."""

    recorder: Recorder
    stopper: Stopper
    heard: float | None = None
    """When the stop was first seen."""


WATCH: ContextVar[Watch] = ContextVar("WATCH")
"""That of this process: Ray pickles callbacks and restores them, so they hold nothing."""


class Watcher(tune.Callback):
    """Ray Tune's callback: gives reports and policies to the recorder, and hears the stop."""

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report."""
        if "report" in result:
            WATCH.get().recorder.record(decode(result["report"]))

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """Keep the checkpoint's policy if it is the best."""

        def read(name: str) -> bytes:
            with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/{name}") as file:
                return bytes(file.read())

        WATCH.get().recorder.keep(decode(read(REPORT)), lambda: read(POLICY))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """End the tuner after a stop, once a snapshot has been taken, with `Interrupted`."""
        watch = WATCH.get()
        if watch.stopper.signal:
            watch.heard = watch.heard or time.monotonic()
            if time.monotonic() - watch.heard > 1.3 * SNAPSHOT_SECONDS:
                raise Interrupted
