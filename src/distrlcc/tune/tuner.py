"""Runs a tuner on Ray Tune: begins or goes on, until its members' steps are done or a signal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distrlcc.cluster.ray_session import RayOptions, ray_session, require_ray
from distrlcc.errors import ConfigError, OutputError
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import env_run, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.storage.storage_url import is_folder, storage_filesystem
from distrlcc.tune.deadline import Deadline
from distrlcc.tune.explore import Explore, load_function
from distrlcc.tune.member import Task, member_name, trainable
from distrlcc.tune.recorder import Recorder
from distrlcc.tune.search import build_asha, build_search, check_sampler
from distrlcc.tune.space import Space, checked_space, with_values
from distrlcc.tune.tune_config import TuneConfig

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


def prepare(config: TuneConfig, options: RayOptions) -> None:
    """Check everything that can be checked before anything is written; compile the simulator.

    Args:
        config: The tuner's.
        options: Which Ray it will run on.

    Raises:
        ConfigError: Something does not exist or fit, or a package is missing.
    """
    require_ray(options.address)
    space = checked_space(config)
    if config.pbt is not None and config.pbt.explore:
        load_function(config.pbt.explore)
    if config.search is not None:
        check_sampler(config.search.sampler)
    rehearse(config.run)
    one_link = Share(0, config.run.env.agents)
    for key, distribution in space.distributions.items():
        for value in distribution.ends():
            try:
                env_run(with_values(config.run, {key: value}), one_link)
            except ConfigError as error:
                raise ConfigError(f"{config.flag} {key}, at {value}: {error}") from None


def storage_of(config: TuneConfig, folder: Path) -> str:
    """Return the folder or URL that members' checkpoints go to."""
    return config.storage or str(folder.absolute() / "checkpoints")


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
    filesystem, path = storage_filesystem(storage_of(config, directory.path))
    recorder = Recorder(directory.path, config, show)
    stopper = Stopper()
    command = "pbt" if config.pbt is not None else "search"
    late = (
        "distrlcc: stopped; Ray did not end in time. Go on with: distrlcc tune "
        f"{command} --resume --out {directory.path}"
    )
    with Deadline(stopper, late), ray_session(options) as ray:
        cores = float(ray.cluster_resources().get("CPU", 0.0))
        if cores < config.cpus_per_trial:
            raise ConfigError(
                f"a member wants {config.cpus_per_trial:g} cores and Ray has {cores:g}: give "
                "--cpus-per-trial, which may be a fraction"
            )
        with stopper:
            return _fit(config, filesystem, path, recorder, stopper, resume=resume)


def _fit(
    config: TuneConfig,
    filesystem: Any,
    path: str,
    recorder: Recorder,
    stopper: Stopper,
    *,
    resume: bool,
) -> Ended:
    from distrlcc.tune.watcher import (  # noqa: PLC0415 - imports Ray
        SNAPSHOT_SECONDS,
        WATCH,
        Interrupted,
        Watch,
    )

    os.environ.update(_ENVIRONMENT)
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = str(SNAPSHOT_SECONDS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what matters is told below
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)
    build = _restored if resume else _new
    tuner = build(config, filesystem, path)
    token = WATCH.set(Watch(recorder, stopper))
    try:
        results = tuner.fit()
    except Interrupted:
        return Ended(stopper.signal, {})
    finally:
        WATCH.reset(token)
    failures = {
        number: str(result.error).strip().splitlines()[-1]
        for number, result in enumerate(results)
        if result.error is not None
    }
    return Ended(0, failures)


def _new(config: TuneConfig, filesystem: Any, path: str) -> Any:
    """Return a tuner that begins."""
    from ray import tune  # noqa: PLC0415 - an optional extra
    from ray.tune.search.basic_variant import BasicVariantGenerator  # noqa: PLC0415

    from distrlcc.tune.watcher import Watcher  # noqa: PLC0415 - imports Ray

    space = Space.parse(config.space, "--mutate")
    arguments: dict[str, Any] = {}
    if config.pbt is not None:
        from distrlcc.tune.population import Population  # noqa: PLC0415 - imports Ray

        arguments["scheduler"] = Population(config, Explore(space, config.run, config.pbt.explore))
        arguments["search_alg"] = BasicVariantGenerator(random_state=config.run.seed % 2**32)
    else:
        assert config.search is not None
        arguments["scheduler"] = build_asha(config)
        arguments["max_concurrent_trials"] = config.search.concurrent or None
        if config.search.sampler == "random":
            arguments["search_alg"] = BasicVariantGenerator(random_state=config.run.seed % 2**32)
        else:
            arguments["search_alg"] = build_search(config.search, config.run.seed)
    return tune.Tuner(
        _trainable(config, space),
        param_space={key: d.domain() for key, d in space.distributions.items()},
        tune_config=tune.TuneConfig(
            metric="score",
            mode=config.mode,
            num_samples=config.members,
            reuse_actors=True,
            trial_name_creator=member_name,
            trial_dirname_creator=member_name,
            **arguments,
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
            trainable=_trainable(config, Space.parse(config.space, "--mutate")),
            storage_filesystem=None if is_folder(filesystem) else filesystem,
            resume_errored=True,
        )
    except (OSError, ValueError, EOFError) as error:
        raise OutputError(f"{place} cannot be resumed: {error}") from None


def _trainable(config: TuneConfig, space: Space) -> Any:
    from ray import tune  # noqa: PLC0415 - an optional extra

    task = Task(config.run, space.keys, config.report_every, config.metric)
    return tune.with_resources(trainable(task), {"cpu": config.cpus_per_trial})
