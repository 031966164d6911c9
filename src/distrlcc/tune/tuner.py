"""Runs a tuner on Ray Tune: begins or goes on, until its members' steps are done or a signal."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distrlcc.cluster.session import RayOptions, ray_session, require_ray
from distrlcc.errors import ConfigError, OutputError
from distrlcc.runs.run_directory import RunDirectory, fresh_folder
from distrlcc.runs.run_state import env_run, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.storage import is_folder, storage_filesystem
from distrlcc.tune.member import member_name, trainable
from distrlcc.tune.outcome import Recorder
from distrlcc.tune.space import checked_space, load_function, parse_space, with_values
from distrlcc.tune.tune_config import TuneConfig

STOP_SECONDS = 7.0
"""Time that a stop takes at most."""
_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy",), "qmc": ("scipy",)}
"""Packages that a sampler needs beside Optuna."""
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # prints even where it is asked not to
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours hears SIGTERM and SIGHUP, too
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # reports.jsonl holds all that they would write
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}


@dataclass(frozen=True)
class Ended:
    """How a tuner ended."""

    signal: int
    """Number of the signal that ended it early, or 0."""
    failures: dict[int, str]
    """Why members failed, by their numbers."""


def read_config(out: Path) -> TuneConfig:
    """Return the configuration of the tuner in a folder.

    Raises:
        OutputError: It holds none.
    """
    try:
        return RunDirectory.read_config(out, TuneConfig)
    except ConfigError as error:
        raise OutputError(f"{out} holds no tuner to resume: {error}") from None
    except OutputError:
        raise OutputError(
            f"{out} holds no tuner to resume: expected a folder that 'distrlcc tune' wrote; leave "
            "out --resume to begin one there"
        ) from None


def open_folder(out: Path | None, config: TuneConfig, *, resume: bool = False) -> RunDirectory:
    """Begin a tuner's folder, or open it to go on, and lock it.

    Raises:
        OutputError: It cannot be written, another process writes it, or it holds something else.
    """
    if resume and out is not None:
        directory = RunDirectory.resume(out, config, tensorboard=False)
    else:
        folder = out or fresh_folder(Path("runs"), f"tune-{config.run.recipe}")
        directory = RunDirectory.create(folder, config, seed=config.run.seed, tensorboard=False)
    directory.lock()
    return directory


def prepare(config: TuneConfig, options: RayOptions) -> None:
    """Check everything that can be checked before anything is written; compile the simulator.

    Raises:
        ConfigError: Something does not exist or fit, or a package is missing.
    """
    require_ray(options.address)
    space = checked_space(config)
    if config.pbt is not None and config.pbt.explore:
        load_function(config.pbt.explore)
    if config.search is not None:
        sampler = config.search.sampler
        for package in ("optuna", *_NEEDS.get(sampler, ())):
            if importlib.util.find_spec(package) is None:
                what = "'distrlcc[ray]'" if package == "optuna" else package
                raise ConfigError(
                    f"--sampler {sampler} needs {package}, which is not installed: pip install "
                    f"{what}"
                )
    rehearse(config.run)
    one_link = Share(0, config.run.env.agents)
    for key, distribution in space.items():
        for value in distribution.ends():
            try:
                env_run(with_values(config.run, {key: value}), one_link)
            except ConfigError as error:
                raise ConfigError(f"{config.flag} {key}, at {value}: {error}") from None


def run(
    config: TuneConfig,
    directory: RunDirectory,
    options: RayOptions,
    *,
    resume: bool = False,
    show: Callable[[str], None] | None = None,
) -> Ended:
    """Run a tuner until it is done or stopped.

    Args:
        config: The tuner's; `prepare` has checked it.
        directory: Its folder, locked.
        options: Which Ray.
        resume: Go on from the last reports.
        show: Takes a line of progress for the user.

    Raises:
        ConfigError: Ray is not installed, or has fewer cores than one member wants.
        GroupError: There is no such cluster.
        OutputError: The storage does not answer or cannot be written, or cannot be resumed.
    """
    # Open what is written to.
    place = config.storage or str(directory.path.absolute() / "checkpoints")
    filesystem, path = storage_filesystem(place)
    recorder = Recorder(directory.path, config, show)
    # Connect to Ray, and stop in time even where Ray does not.
    stopper = Stopper()
    command = "pbt" if config.pbt is not None else "search"
    late = (
        "distrlcc: stopped; Ray did not end in time. Go on with: distrlcc tune "
        f"{command} --resume --out {directory.path}"
    )
    with stop_in_time(stopper, late), ray_session(options) as ray:
        cores = float(ray.cluster_resources().get("CPU", 0.0))
        if cores < config.cpus_per_trial:
            raise ConfigError(
                f"a member wants {config.cpus_per_trial:g} cores and Ray has {cores:g}: give "
                "--cpus-per-trial, which may be a fraction"
            )
        with stopper:
            return _fit(config, filesystem, path, recorder, stopper, resume=resume)


@contextmanager
def stop_in_time(stopper: Stopper, message: str) -> Iterator[None]:
    """End this process when a stop takes too long, as where Ray was sent the signal, too.

    What Ray started on this machine ends with this process; what was reported is saved by then.
    """
    left = threading.Event()

    def watch() -> None:
        while not left.wait(0.2):
            if stopper.signal and not left.wait(STOP_SECONDS):
                sys.stderr.write(message + "\n")
                sys.stderr.flush()
                os._exit(128 + stopper.signal)

    thread = threading.Thread(target=watch, name="deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def _fit(
    config: TuneConfig,
    filesystem: Any,
    path: str,
    recorder: Recorder,
    stopper: Stopper,
    *,
    resume: bool,
) -> Ended:
    # Ray Tune and what it prints.
    from distrlcc.tune.schedulers import (  # noqa: PLC0415 - imports Ray
        SNAPSHOT_SECONDS,
        WATCH,
        Interrupted,
        Watch,
    )

    os.environ.update(_ENVIRONMENT)
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = str(SNAPSHOT_SECONDS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what matters is told below
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)
    tuner = (_restored if resume else _new)(config, filesystem, path)
    # Until all members are done, or the watcher has heard a stop.
    token = WATCH.set(Watch(recorder, stopper))
    try:
        results = tuner.fit()
    except Interrupted:
        return Ended(stopper.signal, {})
    finally:
        WATCH.reset(token)
    errors = {number: str(r.error).strip() for number, r in enumerate(results) if r.error}
    return Ended(0, {number: text.splitlines()[-1] for number, text in errors.items()})


def _new(config: TuneConfig, filesystem: Any, path: str) -> Any:
    """Return a tuner that begins."""
    from ray import tune  # noqa: PLC0415 - an optional extra

    from distrlcc.tune.schedulers import Watcher, chooser  # noqa: PLC0415 - imports Ray

    space = parse_space(config.space, config.flag)
    return tune.Tuner(
        _trainable(config),
        param_space={key: distribution.domain() for key, distribution in space.items()},
        tune_config=tune.TuneConfig(
            metric="score",
            mode=config.mode,
            num_samples=config.members,
            reuse_actors=True,
            trial_name_creator=member_name,
            trial_dirname_creator=member_name,
            **chooser(config, space),
        ),
        run_config=tune.RunConfig(
            name=config.name,
            storage_path=path,
            storage_filesystem=None if is_folder(filesystem) else filesystem,
            failure_config=tune.FailureConfig(max_failures=config.failures),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=config.keep),
            callbacks=[Watcher()],
            verbose=0,
        ),
    )


def _restored(config: TuneConfig, filesystem: Any, path: str) -> Any:
    """Return a tuner that goes on; one that begins, if it was killed before its first snapshot.

    Raises:
        OutputError: What is there cannot be read.
    """
    from pyarrow import fs  # noqa: PLC0415 - Ray brings it
    from ray import tune  # noqa: PLC0415 - an optional extra

    place = f"{path}/{config.name}"
    try:
        found = filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True))
        names = [info.base_name for info in found]
        if "tuner.pkl" not in names or not any(n.startswith("experiment_state") for n in names):
            return _new(config, filesystem, path)
        return tune.Tuner.restore(
            place,
            trainable=_trainable(config),
            storage_filesystem=None if is_folder(filesystem) else filesystem,
            resume_errored=True,
        )
    except (OSError, ValueError, EOFError) as error:
        raise OutputError(f"{place} cannot be resumed: {error}") from None


def _trainable(config: TuneConfig) -> Any:
    from ray import tune  # noqa: PLC0415 - an optional extra

    return tune.with_resources(trainable(config), {"cpu": config.cpus_per_trial})
