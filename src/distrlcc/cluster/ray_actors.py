"""Runs an actor-learner training on Ray, and watches its trainer."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

from distrlcc.cluster.ray_member import MemberGoneError, RayMember
from distrlcc.cluster.ray_placement import Reservation, reserve
from distrlcc.cluster.ray_run import (
    AGAIN_SECONDS,
    TICK,
    absolute_out,
    check_fit,
    command_again,
    end_run,
    fetch_run,
    stop_seconds,
)
from distrlcc.cluster.ray_session import RayOptions, ray_session
from distrlcc.cluster.ray_trainer import TOPOLOGY, RayRun, RayTrainer
from distrlcc.errors import GroupError
from distrlcc.runs.identity import check_identity, identity
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.stopper import Stopper

_BEGIN_SECONDS = 120.0
"""Time that a trainer's process has to begin, s: a machine's death is certain after some 20 s."""


def train_actors_on_ray(
    config: RunConfig,
    options: RunOptions,
    on: RayOptions,
    *,
    restarts: int = 0,
) -> int:
    """Train with workers on a cluster, and start the trainer again where it dies.

    Without a storage the trainer is on this machine, where the run directory is; with one it is
    wherever there is room, and goes on on another machine should its own be gone.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    check_fit(config)
    options = replace(options, out=absolute_out(options, config))
    resources = config.resources
    workers = resources.workers or len(config.actors.links)
    again = command_again(TOPOLOGY, options, on)
    with ray_session(on) as ray:
        at = "" if options.storage else ray.util.get_node_ip_address()
        with (
            reserve(resources, learners=1, workers=workers, at=at) as reservation,
            Progress(config.total_steps, max_seconds=config.max_seconds) as progress,
            Stopper() as stopper,  # until here a signal ends us at once
        ):
            config = _for_workers(config, workers)
            job = RayRun(config, options, uuid.uuid4().hex)
            signal, said = _supervise(job, reservation, progress, stopper, restarts, again)
    fetch_run(options)
    return end_run(signal, said, again)


def _for_workers(config: RunConfig, workers: int) -> RunConfig:
    """Return the configuration with an update's segments counted for so many workers."""
    actors = config.actors
    if actors.segments_per_update or workers == len(actors.links):
        return config
    return replace(config, actors=replace(actors, segments_per_update=workers))


def _supervise(
    job: RayRun,
    reservation: Reservation,
    progress: Progress,
    stopper: Stopper,
    restarts: int,
    again: str,
) -> tuple[int, list[str]]:
    """Have one trainer after the other, until one ends in good order.

    Returns:
        The signal that ended it, or 0, and what it said last.
    """
    while True:
        trainer = _begin(job, reservation, stopper)
        try:
            trainer.train(job, reservation)
            seconds = stop_seconds(stored=bool(job.options.storage))
            return _watch(trainer, progress, stopper, seconds), trainer.said
        except MemberGoneError as error:
            if stopper.signal or job.attempt >= restarts:
                hint = "" if stopper.signal else "; --restarts K starts it again by itself"
                raise GroupError(
                    f"{error}; go on from its last checkpoint with: {again}{hint}"
                ) from None
            progress.note(f"{error}; starting it again")
        finally:
            trainer.kill()
        job = replace(job, attempt=job.attempt + 1)


def _begin(job: RayRun, reservation: Reservation, stopper: Stopper) -> RayMember:
    """Have a trainer; where its place is on a machine that has just died, try again.

    Raises:
        GroupError: There is none in time, or it is of another version.
    """
    deadline = time.monotonic() + _BEGIN_SECONDS
    while True:
        trainer = RayMember("the trainer", RayTrainer, reservation.learner_options())
        try:
            left = max(deadline - time.monotonic(), 1.0)
            theirs = trainer.call(
                "identity", job.config, seconds=left, stopping=lambda: bool(stopper.signal)
            )
            check_identity(identity(job.config, topology=TOPOLOGY), theirs)
            return trainer
        except MemberGoneError as error:
            trainer.kill()
            if stopper.signal:
                raise GroupError(
                    "stopped before the trainer had begun", exit_code=128 + stopper.signal
                ) from None
            if time.monotonic() > deadline:
                raise GroupError(
                    f"no machine of the cluster starts the trainer within {_BEGIN_SECONDS:.0f} s: "
                    f"{error}"
                ) from None
            time.sleep(AGAIN_SECONDS)
        except BaseException:
            trainer.kill()
            raise


def _watch(trainer: RayMember, progress: Progress, stopper: Stopper, seconds: float) -> int:
    """Wait for a trainer, after a user's signal so many seconds; return its signal."""
    asked = 0.0
    while True:
        result = trainer.poll(progress)
        if result is not None:
            return result
        if stopper.signal:
            asked = asked or time.monotonic()
            trainer.stop(stopper.signal)
            if time.monotonic() - asked > seconds:
                raise MemberGoneError("the trainer did not end in time")
        time.sleep(TICK)
