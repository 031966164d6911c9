"""The parts of a tuner around Ray Tune: its folder, checks before it begins, an end in time."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distrlcc.cluster.session import require_ray
from distrlcc.errors import ConfigError, OutputError, reading
from distrlcc.extras import require
from distrlcc.limits import limits
from distrlcc.runs.run_directory import RunDirectory, make_fresh
from distrlcc.runs.run_state import env_run, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.storage import say
from distrlcc.tune.space import space_of, with_values
from distrlcc.tune.tune_config import TuneConfig

_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy",), "qmc": ("scipy",)}  # packages beside Optuna


def read_config(out: Path) -> TuneConfig:
    """Return the configuration of the tuner in a folder; raises OutputError if it is missing."""
    with reading(OutputError, f"{out} holds no tuner to resume"):
        return RunDirectory.read_config(out, TuneConfig, say)


def open_folder(out: Path | None, config: TuneConfig, *, resume: bool = False) -> RunDirectory:
    """Begin a tuner's folder, or open it to go on, and lock it; raises OutputError."""
    folder = out or make_fresh(Path("runs"), f"tune-{config.run.recipe}")
    directory = RunDirectory.open(folder, config, resume=resume, tensorboard=False)
    directory.lock()
    return directory


def prepare(config: TuneConfig) -> None:
    """Check what `check_space` leaves, or raise ConfigError; compile the simulator."""
    require_ray()
    if config.search is not None:
        require("optuna", *_NEEDS.get(config.search.sampler, ()))
    # A member trains with each end of each distribution.
    rehearse(config.run)
    one_link = Share(0, config.run.env.unit)
    for key, distribution in space_of(config).items():
        for value in distribution.ends():
            try:
                env_run(with_values(config.run, {key: value}), one_link)
            except ConfigError as error:
                raise ConfigError(f"{config.flag} {key}, at {value}: {error}") from None


@contextmanager
def stop_in_time(stopper: Stopper, message: str) -> Iterator[None]:
    """End this process, and Ray's here with it, when a stop takes too long; reports are saved."""
    left = threading.Event()

    def watch() -> None:
        while not left.wait(limits().tick):
            if stopper.signal and not left.wait(limits().worker_silence):
                sys.stderr.write(f"{message}\n")
                os._exit(128 + stopper.signal)

    thread = threading.Thread(target=watch, name="deadline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
