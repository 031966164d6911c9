"""Ray's population-based training, with draws that a seed decides and a state that survives.

Imports Ray: import this module where Ray is known to be installed. Ray's own scheduler draws from
Python's global generator, and begins anew when a tuner is restored: where members are looked at
together, it then waits for ever (its next look lies behind all members).
"""

from __future__ import annotations

import random
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining

from distrlcc.tune.explore import Explore
from distrlcc.tune.member import member_number
from distrlcc.tune.tune_config import TuneConfig


class Population(PopulationBasedTraining):
    """A scheduler for `ray.tune.Tuner`."""

    def __init__(self, config: TuneConfig, explore: Explore) -> None:
        """Take a tuner's configuration."""
        pbt = config.pbt
        assert pbt is not None
        self._seed = config.run.seed
        super().__init__(
            time_attr=pbt.time_attr,
            perturbation_interval=pbt.interval,
            burn_in_period=pbt.burn_in,
            hyperparam_mutations={
                key: distribution.mutation()
                for key, distribution in explore.space.distributions.items()
            },
            quantile_fraction=pbt.quantile,
            resample_probability=pbt.resample,
            perturbation_factors=pbt.factors,
            custom_explore_fn=explore,
            log_config=pbt.log_config,
            require_attrs=pbt.require_attrs,
            synch=pbt.synch,
        )

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take a member in; a restored one with score and time of what it goes on from."""
        super().on_trial_add(tune_controller, trial)
        # In one order, however they come: where scores are equal, it decides.
        ordered = sorted(self._trial_state.items(), key=lambda item: item[0].trial_id)
        self._trial_state = dict(ordered)
        checkpoint = trial.latest_checkpoint_result
        result = checkpoint.metrics if checkpoint is not None else {}
        if self._time_attr not in result or self._metric not in result or trial.is_finished():
            return
        state = self._trial_state[trial]
        time = result[self._time_attr]
        self._save_trial_state(state, time, result, trial)
        state.last_perturbation_time = time
        if not self._synch:
            return
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
