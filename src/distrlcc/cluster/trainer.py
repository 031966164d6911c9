"""Actor-learner training on Ray: one actor is the trainer, and starts the workers.

Without a storage the trainer is on the machine where the command was given and the run directory
is. With one it is wherever there is room, and Ray starts it again on another machine if its own is
gone; it then goes on from the last checkpoint.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace

from distrlcc.actors.trainer import ActorRun, train_on_engine
from distrlcc.actors.worker_pool import START_SECONDS
from distrlcc.cluster.engine import RayEngine
from distrlcc.cluster.member import (
    TICK,
    Member,
    MemberGoneError,
    Trains,
    absolute_out,
    command_again,
    end_run,
    stop_seconds,
)
from distrlcc.cluster.placement import Reservation, reserve
from distrlcc.cluster.session import RayOptions, ray_session
from distrlcc.errors import GroupError
from distrlcc.parallel.start import open_directory
from distrlcc.processes import let_threads_preempt, switch_threads_often
from distrlcc.runs.identity import check_identity, identity
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import rehearse
from distrlcc.runs.stopper import Stopper

TOPOLOGY = "actor-learner"
_BEGIN_SECONDS = 120.0
"""Time that a trainer's process has to begin, s: a machine's death is certain after some 20 s."""


@dataclass(frozen=True)
class RayRun:
    """A run, as its trainer is told of it."""

    config: RunConfig
    options: RunOptions
    run: str
    """Its id; the same for each trainer, one after the other."""
    identity: dict[str, str]
    """Of the process that started the run."""


class RayTrainer(Trains):
    """Trains in one thread and answers in others."""

    def train(self, job: RayRun, reservation: Reservation) -> int:
        """Train until the end; return 0 or the signal that ended it.

        Raises:
            DistrlccError: This machine has other versions; or see `open_directory` and
                `train_on_engine`.
        """
        config, options = job.config, job.options
        check_identity(job.identity, identity(config, topology=TOPOLOGY))
        switch_threads_often()
        self.feed.take_warnings()
        # One that Ray has started again goes on from the last checkpoint, if there is any.
        attempt = self.restarts
        if attempt and not options.resume:
            options = replace(options, resume=_has_begun(options, job.run))
        # A trainer that was given up may live on, cut off: its successor takes the name over.
        name = f"{job.run}#{attempt}"
        with open_directory(config, options, name) as directory:
            directory.lock()
            told = ActorRun(
                config,
                directory.path,
                options.resume,
                options.tensorboard,
                storage=directory.storage,
            )
            state = told.state("cuda:0" if config.resources.learner_gpus else "cpu")
            if told.resume or attempt:
                update = state.counters.update
                start = f"going on after update {update}" if update else "from the start"
                self.feed.note(start if update else f"no checkpoint yet: {start}")
            let_threads_preempt(True)
            return train_on_engine(
                told,
                state,
                RayEngine(reservation, config, job.identity),
                feed=self.feed,
                stopper=self.stopper,
                patience=2.0 * START_SECONDS,  # their processes are still to be made
            )


def _has_begun(options: RunOptions, run: str) -> bool:
    """Say whether an earlier trainer left something to go on with."""
    if options.out is not None and (options.out / "config.toml").exists():
        return True
    storage = options.place(run)
    return storage is not None and storage.holds_run()


def train_actors_on_ray(
    config: RunConfig,
    options: RunOptions,
    on: RayOptions,
    *,
    restarts: int = 0,
) -> int:
    """Train with workers on a cluster; Ray starts a trainer that died again, ``restarts`` times.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    rehearse(config)
    options = replace(options, out=absolute_out(options, config))
    resources, actors = config.resources, config.actors
    workers = resources.workers or len(actors.links)
    # An update's segments are counted for the workers that there are.
    if not actors.segments_per_update and workers != len(actors.links):
        config = replace(config, actors=replace(actors, segments_per_update=workers))
    again = command_again(TOPOLOGY, options, on)
    with ray_session(on) as ray:
        at = "" if options.storage else ray.util.get_node_ip_address()
        with (
            reserve(resources, learners=1, workers=workers, at=at) as reservation,
            Progress(config.total_steps, max_seconds=config.max_seconds) as progress,
            Stopper() as stopper,  # until here a signal ends us at once
        ):
            own = identity(config, topology=TOPOLOGY)
            job = RayRun(config, options, uuid.uuid4().hex, own)
            place = reservation.learner_options()
            trainer = Member(
                "the trainer", RayTrainer, place, (job, reservation), restarts=restarts
            )
            try:
                signal = _watch(trainer, progress, stopper, stored=bool(options.storage))
            except MemberGoneError as error:
                hint = "" if stopper.signal else "; --restarts K starts it again by itself"
                raise GroupError(
                    f"{error}; go on from its last checkpoint with: {again}{hint}"
                ) from None
            finally:
                trainer.kill()
    # Fetch a run that was trained on another machine.
    storage = options.place("")
    if storage is not None and options.out is not None and not options.out.exists():
        storage.pull(options.out)
    return end_run(signal, trainer.said, again)


def _watch(trainer: Member, progress: Progress, stopper: Stopper, *, stored: bool) -> int:
    """Wait for a trainer, after a user's signal for a limited time; return its signal."""
    asked = 0.0
    while True:
        result = trainer.poll(progress)
        if result is not None:
            return result
        if stopper.signal:
            if trainer.waiting_seconds:
                raise GroupError(
                    "stopped before the trainer had begun", exit_code=128 + stopper.signal
                )
            asked = asked or time.monotonic()
            trainer.stop(stopper.signal)
            if time.monotonic() - asked > stop_seconds(stored=stored):
                raise MemberGoneError("the trainer did not end in time")
        if trainer.waiting_seconds > _BEGIN_SECONDS:
            raise MemberGoneError(
                f"no machine of the cluster starts the trainer within {_BEGIN_SECONDS:.0f} s"
            )
        time.sleep(TICK)
