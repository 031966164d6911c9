"""Runs a tuner on Ray Tune: begins or goes on, until its members' steps are done or a signal."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distrlcc.cluster.session import RayOptions, ray_session, require_ray
from distrlcc.errors import ConfigError, OutputError
from distrlcc.runs.run_directory import RunDirectory, fresh_folder
from distrlcc.runs.run_state import env_run, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.storage import storage_filesystem
from distrlcc.tune.outcome import Recorder
from distrlcc.tune.space import checked_space, load_function, with_values
from distrlcc.tune.tune_config import TuneConfig

STOP_SECONDS = 7.0
"""Time that a stop takes at most."""
_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy",), "qmc": ("scipy",)}
"""Packages that a sampler needs beside Optuna."""


@dataclass(frozen=True)
class Ended:
    """How a tuner ended."""

    signal: int
    """Number of the signal that ended it early, or 0."""
    failures: dict[int, str]
    """Why members failed, by their numbers."""


def read_config(out: Path) -> TuneConfig:
    """Return the configuration of the tuner in a folder; raises OutputError if there is none."""
    try:
        return RunDirectory.read_config(out, TuneConfig)
    except (ConfigError, OutputError) as error:
        reason = str(error)
        if isinstance(error, OutputError):
            reason = "expected a folder of 'distrlcc tune'; leave out --resume to begin one there"
        raise OutputError(f"{out} holds no tuner to resume: {reason}") from None


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
    require_ray()
    space = checked_space(config)
    if config.pbt is not None and config.pbt.explore:
        load_function(config.pbt.explore)
    if config.search is not None:
        sampler = config.search.sampler
        for package in ("optuna", *_NEEDS.get(sampler, ())):
            if importlib.util.find_spec(package) is None:
                install = "pip install " + ("'distrlcc[ray]'" if package == "optuna" else package)
                raise ConfigError(f"--sampler {sampler}: {package} is not installed: {install}")
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
    """Run a tuner that `prepare` has checked, until it is done or stopped.

    Args:
        config: The tuner's.
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
    place = storage_filesystem(config.storage or str(directory.path.absolute() / "checkpoints"))
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
            from distrlcc.tune.ray_tune import fit  # noqa: PLC0415 - imports Ray

            failures = fit(config, place, recorder, stopper, resume=resume)
        return Ended(stopper.signal, {}) if failures is None else Ended(0, failures)


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
