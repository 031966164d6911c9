"""A search on Ray Tune: how it chooses trials, and how a member's process reports to it.

Imports Ray: import this module where Ray is known to be installed.
"""

import logging
import os
import pickle
import random
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyarrow import fs
from ray import tune
from ray.train._internal.session import _FutureTrainingResult
from ray.train._internal.storage import _delete_fs_path
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search.basic_variant import BasicVariantGenerator

from distrlcc.cluster.session import ray_nodes, ray_session
from distrlcc.errors import ConfigError, DistrlccError, OutputError, reading
from distrlcc.filesystems import is_folder, storage_filesystem
from distrlcc.plugins import blame
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.stopper import Stopper
from distrlcc.tune.member import REPORT, Member
from distrlcc.tune.outcome import COPIES, POLICY, Recorder
from distrlcc.tune.report import Copy, decode
from distrlcc.tune.space import explorer, space_of
from distrlcc.tune.tune_config import STOPPERS, TuneConfig, steps_per_update
from distrlcc.tune.tuner import stop_in_time

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # prints even where it is asked not to
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours hears SIGTERM and SIGHUP, too
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # reports.jsonl holds all that they would write
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a recipe's files are where the user named them
    "TUNE_GLOBAL_CHECKPOINT_S": "1",  # snapshots of Ray Tune's state
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}
_SNAPSHOT_SECONDS = 10.0  # the newest snapshot is not older than this
_SAMPLERS = dict(tpe="TPE", cmaes="CmaEs", gp="GP", qmc="QMC", nsga2="NSGAII", nsga3="NSGAIII")
"""Optuna's classes, less ``Sampler``."""


@dataclass
class _Watch:
    """State of the callbacks."""

    recorder: Recorder
    stopper: Stopper
    stopped: int = 0
    failure: DistrlccError | None = None
    failed: dict[int, str] = field(default_factory=dict)  # why members failed for good, by number


_WATCH: ContextVar[_Watch] = ContextVar("WATCH")
"""This process's state: Ray pickles callbacks and restores them, so they hold nothing."""


def run(
    config: TuneConfig,
    directory: RunDirectory,
    *,
    address: str = "",
    cpus: float | None = None,
    resume: bool,
    show: Callable[[str], None],
) -> tuple[int, dict[int, str]]:
    """Run a tuner that `prepare` has checked, until it is done or stopped; ``show`` takes lines.

    Returns the signal that ended it early, or 0, and why members failed, by number. ConfigError: no
    Ray, or no room for a member; GroupError: no such cluster; OutputError: the storage.
    """
    # Open what is written to.
    place = storage_filesystem(config.storage or str(directory.path.absolute() / "checkpoints"))
    recorder, stopper = Recorder(directory.path, config, show), Stopper()
    # Connect to Ray, and stop in time even where Ray does not.
    late = (
        "distrlcc: stopped; Ray did not end in time. Go on with: distrlcc "
        f"{config.command} --resume --out {directory.path}"
    )
    with stop_in_time(stopper, late), ray_session(address, cpus) as ray:
        cores = max(node.cpus for node in ray_nodes(ray) if node.alive)
        if cores < config.cpus_per_trial:
            raise ConfigError(
                f"a member wants {config.cpus_per_trial:g} cores and no machine of Ray has more "
                f"than {cores:g}: give --cpus-per-trial, which may be a fraction"
            )
        # Run.
        show(
            f"{config.members} members train for up to {config.updates} updates each, "
            f"with a report every {config.report_every}"
        )
        os.environ.update(_ENVIRONMENT)
        _quiet(logging.CRITICAL)  # what matters is told by others
        _WATCH.set(watch := _Watch(recorder, stopper))
        with stopper:
            if resume:
                tuner = _restored(config, *place, begun=recorder.best is not None)
            else:
                tuner = _tuner(config, *place)
            results = _fit(tuner)
        if watch.failure is not None:
            raise watch.failure
        # A stopped tuner has no results, so failures are noted when they happen.
        if not watch.stopped:
            watch.failed |= {_member_number(r.path): _why(r.error) for r in results if r.error}
    return watch.stopped, watch.failed


def _fit(tuner: tune.Tuner) -> Any:
    """Run a tuner; what we or a user's code raised in it, and Ray has wrapped, is raised again."""
    try:
        return tuner.fit()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not (isinstance(cause, DistrlccError) or blame(cause)):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None


def _restored(config: TuneConfig, filesystem: Any, path: str, *, begun: bool) -> tune.Tuner:
    """Return a tuner that goes on with what Ray Tune has saved; a new one, if nothing was kept."""
    place, elsewhere = f"{path}/{config.name}", None if is_folder(filesystem) else filesystem
    try:
        found = filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True))
        names = [info.base_name for info in found]
        if "tuner.pkl" in names and any(n.startswith("experiment_state") for n in names):
            return tune.Tuner.restore(
                place, _trainable(config), storage_filesystem=elsewhere, resume_errored=True
            )
    except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise OutputError(f"{place} cannot be resumed: {error}") from None
    if begun:
        raise OutputError(
            f"{place} has no state of Ray Tune's, though members have reported: see that the "
            "storage is mounted there, or begin anew with another --out"
        )
    return _tuner(config, filesystem, path)


def _trainable(config: TuneConfig) -> Any:
    return tune.with_resources(_member_process(config), {"cpu": config.cpus_per_trial})


def _tuner(config: TuneConfig, filesystem: Any, path: str) -> tune.Tuner:
    return tune.Tuner(
        _trainable(config),
        param_space={key: found.domain() for key, found in space_of(config).items()},
        tune_config=tune.TuneConfig(
            metric="score",
            mode=config.mode,
            num_samples=config.members,
            reuse_actors=True,
            trial_name_creator=_member_name,
            trial_dirname_creator=_member_name,
            **_chooser(config),
        ),
        run_config=tune.RunConfig(
            name=config.name,
            storage_path=path,
            storage_filesystem=None if is_folder(filesystem) else filesystem,
            failure_config=tune.FailureConfig(max_failures=config.failures),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=config.keep if config.search else None  # see `Population`
            ),
            callbacks=[_Watcher()],
            stop=_stopping(config),
            verbose=0,
        ),
    )


def _stopping(config: TuneConfig) -> Callable[[str, Mapping[str, Any]], bool] | None:
    """Return what ends a member early: the user's own function, if there is one."""
    if not config.stop:
        return None

    def stop(trial: str, result: Mapping[str, Any]) -> bool:
        if "report" not in result:
            return False
        said: Any = STOPPERS[config.stop](decode(result["report"]))
        if not isinstance(said, bool | np.bool_):
            raise ConfigError(f"--stop {config.stop} returned {said!r:.60}; expected True or False")
        return bool(said)

    return stop


def _member_process(tuner: TuneConfig) -> Any:
    """Return the function that Ray Tune runs for each member, in a process of its own."""

    def train(config: dict[str, Any]) -> None:
        _quiet(logging.WARNING)  # no notes on every checkpoint on the user's terminal
        member = Member(tuner, config, _member_number(tune.get_context().get_trial_name()))
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                member.load(Path(folder))
        while not member.done:
            report = member.advance()
            text = msgspec.json.encode(report).decode()
            metrics = {"score": report.score, "report": text, "done": member.done}
            metrics |= {"update": report.update, "steps": report.steps}
            with tempfile.TemporaryDirectory(prefix="distrlcc-member-") as folder:
                member.save(Path(folder), report)
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    return train


def _quiet(level: int) -> None:
    for name in ("ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(level)


def _member_name(trial: Trial) -> str:
    number = int(trial.experiment_tag.partition("_")[0])
    if "_" not in trial.trial_id:  # Ray numbers trials of a sampler from 1, others from 0
        number -= 1
    return f"member-{number:05}"


def _member_number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _chooser(config: TuneConfig) -> dict[str, Any]:
    """Return the arguments of Ray's ``TuneConfig`` that choose trials and stop them."""
    seed, search = config.run.seed % 2**32, config.search
    together = search.concurrent if search else 0
    drawn = BasicVariantGenerator(random_state=seed, max_concurrent=together)
    chosen: dict[str, Any] = {"search_alg": drawn}
    if search is None:
        return chosen | {"scheduler": Population(config)}
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
        return chosen
    import optuna  # noqa: PLC0415 - an optional extra, slow to import
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = getattr(optuna.samplers, f"{_SAMPLERS[search.sampler]}Sampler")(seed=seed)
    chosen["max_concurrent_trials"] = together or None
    return chosen | {"search_alg": OptunaSearch(sampler=sampler)}


class Population(PopulationBasedTraining):
    """Ray's population-based training, with draws that a seed decides and a state that survives.

    Ray's own draws from Python's global generator, and begins anew when a tuner is restored. With
    synch it may wait forever for a member that failed or is done, after a restore, or if reports
    are rare. It copies no member that was not among the best at its own last look. And it deletes
    checkpoints by number, also those that another member will still copy.
    """

    def __init__(self, config: TuneConfig) -> None:
        """Take a tuner's configuration."""
        pbt = config.pbt
        assert pbt is not None
        self._seed, self._keep = config.run.seed, config.keep
        self._copied: Trial | None = None
        self._seen: dict[str, float] = {}  # when checkpoints were seen first
        super().__init__(
            time_attr=pbt.time_attr,
            perturbation_interval=pbt.interval,
            burn_in_period=pbt.burn_in,
            hyperparam_mutations={k: found.mutation() for k, found in space_of(config).items()},
            quantile_fraction=pbt.quantile,
            resample_probability=pbt.resample,
            perturbation_factors=pbt.factors,
            custom_explore_fn=explorer(config),
            log_config=pbt.log_config,
            synch=pbt.synch,
        )

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a member; one that goes on, with score and time of its last checkpoint."""
        again = trial in self._trial_state  # it failed, and is started again
        super().on_trial_add(tune_controller, trial)
        # Keep one order, however they come: where scores are equal, it decides.
        ordered = sorted(self._trial_state.items(), key=lambda item: item[0].trial_id)
        self._trial_state = dict(ordered)
        # Restore its state from its last checkpoint, and let it wait for the next look at all.
        checkpoint = trial.latest_checkpoint_result
        result = checkpoint.metrics if checkpoint is not None else {}
        if self._time_attr in result and self._metric in result and not trial.is_finished():
            state, time = self._trial_state[trial], result[self._time_attr]
            self._save_trial_state(state, time, result, trial)
            looked = time >= max(self._perturbation_interval, self._burn_in_period)
            state.last_perturbation_time = looked * (time - time % self._perturbation_interval)
            if self._synch and not again:
                trial.set_status(Trial.PAUSED)  # Ray starts pending ones, even those that wait
        self._set_next_look()

    def _set_next_look(self) -> None:
        """Look next when not all have that behind them; some may have no checkpoint yet."""
        times = [s.last_train_time for t, s in self._trial_state.items() if not t.is_finished()]
        if self._synch and times:
            first = max(self._perturbation_interval, self._burn_in_period)
            looks = max((min(times) - first) // self._perturbation_interval + 1, 0)
            self._next_perturbation_sync = first + looks * self._perturbation_interval

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decide as Ray does, with draws that depend on the seed and on when, not on what ran."""
        drawn = f"{self._seed}/{result.get(self._time_attr)}"
        if not self._synch:  # a member that copied one that was behind comes by again
            drawn += f"/{_member_number(str(trial))}/{self._num_perturbations}"
        before = random.getstate()
        random.seed(drawn)
        try:
            return str(super().on_trial_result(tune_controller, trial, result))
        finally:
            random.setstate(before)
            self._set_next_look()
            self._prune(tune_controller)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Delete what a member that is done leaves over."""
        super().on_trial_complete(tune_controller, trial, result)
        self._prune(tune_controller, trial)

    def _prune(self, tune_controller: Any, done: Trial | None = None) -> None:
        """Delete old checkpoints, but none that is needed or that Ray's last snapshot names."""
        # Which ones are needed? A checkpoint that is still being saved has no name yet.
        trials, now = tune_controller.get_trials(), time.monotonic()
        needed, saving = set[str](), set[Trial]()
        for trial, state in self._trial_state.items():
            if isinstance(state.last_checkpoint, _FutureTrainingResult):
                if found := state.last_checkpoint.resolve(block=False):
                    state.last_checkpoint, state.last_result = found.checkpoint, found.metrics
                else:
                    saving.add(trial)
            needed |= {getattr(c, "path", "") for c in (trial.checkpoint, state.last_checkpoint)}
        for trial in (trial for trial in trials if trial not in saving):
            results = trial.run_metadata.checkpoint_manager._checkpoint_results
            for old, newer in list(zip(results, results[self._keep :], strict=False)):
                age = now - self._seen.setdefault(newer.checkpoint.path, now)
                path = old.checkpoint.path
                if path not in needed and (age > _SNAPSHOT_SECONDS or trial is done):
                    results.remove(old)
                    self._seen.pop(path, None)
                    trial.run_metadata.invalidate_cache()
                    # A member that went on may have saved a newer one at the same place.
                    if all(other.checkpoint.path != path for other in results):
                        _delete_fs_path(old.checkpoint.filesystem, path)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Choose as Ray does; if the awaited member failed or finished, consider all."""
        chosen = super().choose_trial_to_run(tune_controller)
        left = [trial for trial in tune_controller.get_trials() if not trial.is_finished()]
        stuck = self._synch and left and all(trial.status == Trial.PAUSED for trial in left)
        if chosen is None and stuck:
            tune_controller.get_live_trials().intersection_update(left)
            state = self._trial_state[left[0]]
            state.last_perturbation_time = 0  # a restored one seems to have looked
            self.on_trial_result(tune_controller, left[0], state.last_result or {})
            chosen = super().choose_trial_to_run(tune_controller)
        return chosen

    def _checkpoint_or_exploit(
        self, trial: Trial, tune_controller: Any, upper_quantile: Any, lower_quantile: Any
    ) -> None:
        """Save or copy as Ray does, and note each copy that was decided on."""
        # One of the best that was not when it was looked at has its newest checkpoint to copy.
        for best in upper_quantile if trial in lower_quantile else ():
            state, newest = self._trial_state[best], best.latest_checkpoint_result
            if state.last_checkpoint is None and newest is not None:
                state.last_checkpoint, state.last_result = newest.checkpoint, newest.metrics
                state.last_train_time = newest.metrics.get(self._time_attr, state.last_train_time)
        own_time, self._copied = self._trial_state[trial].last_train_time or 0, None
        super()._checkpoint_or_exploit(trial, tune_controller, upper_quantile, lower_quantile)
        watch = _WATCH.get(None)
        if trial in lower_quantile and watch is not None:
            copy = Copy(_member_number(str(trial)), own_time)
            if self._copied is not None:
                time = self._trial_state[self._copied].last_train_time or 0
                copy = replace(copy, donor=_member_number(str(self._copied)), donor_time=time)
            watch.recorder.append(COPIES, copy)

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        """Copy as Ray does, and let the next snapshot know: Ray's has the values alone."""
        super()._exploit(tune_controller, trial, trial_to_clone)
        self._copied = trial_to_clone
        trial.run_metadata.invalidate_cache()
        tune_controller._mark_trial_to_checkpoint(trial)


def _why(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("worker process has died" in line for line in lines):  # Ray guesses in a long line why
        return "its process died: killed, out of memory, crashed, or its code ended it"
    return lines[-1] if lines else "no reason given"


class _Watcher(tune.Callback):
    """Gives reports and policies to the recorder, and a stop to Ray Tune."""

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "report" in result:
            _WATCH.get().recorder.record(decode(result["report"]))

    def on_checkpoint(
        self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        def read(name: str) -> bytes:
            with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/{name}") as file:
                return bytes(file.read())

        watch = _WATCH.get()
        try:
            with reading(OutputError, f"cannot read {checkpoint.path}"):
                watch.recorder.keep(decode(read(REPORT)), lambda: read(POLICY))
        except OutputError as error:
            watch.failure = error
            raise  # Ray Tune goes on, but as if the member had not saved

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self._tell(trial, "failed and is started again")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        _WATCH.get().failed[_member_number(str(trial))] = self._tell(trial, "failed")

    def _tell(self, trial: Any, what: str) -> str:
        # Ray's own `get_error` reads the storage, where the file comes later.
        reason = _why(Path(trial.error_file).read_text(errors="replace"))
        _WATCH.get().recorder.show(f"member {_member_number(str(trial))} {what}: {reason}")
        return reason

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        watch = _WATCH.get()
        if watch.failure is not None:
            raise watch.failure
        # Ray Tune saves its state and ends; a member that copied one whose checkpoint is still
        # being saved would copy again after a resume. Where all are done there is nothing to stop.
        done = all(trial.is_finished() for trial in trials)
        if watch.stopper.signal and not done and not any(trial.is_saving for trial in trials):
            watch.stopped = watch.stopper.signal
            signal.raise_signal(signal.SIGUSR1)
