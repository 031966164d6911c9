"""Actor-learner training on Ray: one actor is the trainer, and starts the workers.

Without a storage the trainer is on the machine where the command was given and the run directory
is. With one it is wherever there is room, and Ray starts it again on another machine if its own is
gone; it then goes on from the last checkpoint.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from distrlcc.actors.trainer import ActorRun, train_on_engine
from distrlcc.actors.worker_pool import START_SECONDS
from distrlcc.cluster.engine import TOPOLOGY, RayEngine
from distrlcc.cluster.member import Member, Trains, absolute_out, drive
from distrlcc.cluster.placement import Reservation
from distrlcc.cluster.session import RayOptions
from distrlcc.parallel.start import open_directory
from distrlcc.processes import let_threads_preempt, switch_threads_often
from distrlcc.runs.identity import check_identity, identity
from distrlcc.runs.options import RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import rehearse


@dataclass(frozen=True)
class TrainerJob:
    """A run, as its trainer is told of it."""

    config: RunConfig
    options: RunOptions
    run: str
    """Id of the run; the same for each trainer, one after the other."""
    identity: dict[str, str]
    """Identity of the process that started the run."""


class RayTrainer(Trains):
    """Trains in one thread and answers in others."""

    def train(self, job: TrainerJob, room: Reservation) -> int:
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
        if self.restarts and not options.resume:
            options = replace(options, resume=_has_begun(options, job.run))
        # A trainer that was given up may live on, cut off: its successor takes the name over.
        with open_directory(config, options, f"{job.run}#{self.restarts}") as directory:
            run = ActorRun(
                config, directory.path, options.resume, options.tensorboard, directory.storage
            )
            state = run.state("cuda:0" if config.resources.learner_gpus else "cpu")
            if update := state.counters.update:
                self.feed.note(f"going on after update {update}")
            elif run.resume or self.restarts:
                self.feed.note("no checkpoint yet: from the start")
            let_threads_preempt(True)
            return train_on_engine(
                run,
                state,
                RayEngine(room, config, job.identity),
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
    config: RunConfig, options: RunOptions, on: RayOptions, *, restarts: int = 0
) -> int:
    """Train with workers on a cluster; Ray starts a trainer that died again, ``restarts`` times.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    rehearse(config)
    options = absolute_out(options, config)
    workers = config.resources.workers or len(config.actors.links)
    # An update's segments are counted for the workers that there are.
    if not config.actors.segments_per_update and workers != len(config.actors.links):
        config = replace(config, actors=replace(config.actors, segments_per_update=workers))
    with drive(
        config,
        options,
        on,
        TOPOLOGY,
        learners=1,
        workers=workers,
        anywhere=bool(options.storage),
        hint="; --restarts K starts it again by itself",
    ) as run:
        own = identity(config, topology=TOPOLOGY)
        job = TrainerJob(config, options, uuid.uuid4().hex, own), run.room
        room = run.room.learner_options()
        run.members = [Member("the trainer", RayTrainer, room, job, restarts)]
        run.watch()
    # Fetch a run that was trained on another machine.
    storage = options.place("")
    if storage is not None and options.out is not None and not options.out.exists():
        storage.pull(options.out)
    return run.end()
