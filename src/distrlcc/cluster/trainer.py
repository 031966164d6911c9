"""Actor-learner training on Ray: one actor is the trainer, and starts the workers.

Without a storage the trainer is on the machine where the command was given and the run directory
is. With one it is wherever there is room, and Ray starts it again on another machine if its own is
gone; it then goes on from the last checkpoint.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from distrlcc.actors.trainer import ActorRun, train_on_engine
from distrlcc.cluster.engine import TOPOLOGY, RayEngine
from distrlcc.cluster.member import Trains, drive
from distrlcc.cluster.placement import Reservation
from distrlcc.cluster.session import RayOptions
from distrlcc.limits import limits
from distrlcc.parallel.start import open_directory
from distrlcc.processes import let_threads_preempt, switch_threads_often
from distrlcc.runs.identity import check_identity, identity
from distrlcc.runs.options import RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import rehearse


class RayTrainer(Trains):
    """The trainer of an actor-learner run."""

    def train(
        self,
        config: RunConfig,
        options: RunOptions,
        run_id: str,
        own: dict[str, str],
        room: Reservation,
    ) -> int:
        """Train until the end; return 0 or the signal that ended it.

        Args:
            config: The run's.
            options: Where it writes.
            run_id: The same for each trainer of the run, one after the other.
            own: Identity of the process that started the run.
            room: The workers'.

        Raises:
            DistrlccError: This machine has other versions; or see `open_directory` and
                `train_on_engine`.
        """
        check_identity(own, identity(config, topology=TOPOLOGY))
        switch_threads_often()
        self.feed.take_warnings()
        # One that Ray has started again goes on from the last checkpoint, if there is any.
        storage = options.place(run_id)
        if self.restarts and not options.resume and options.out is not None:
            begun = (options.out / "config.toml").exists()
            begun = begun or (storage is not None and storage.holds_run())
            options = replace(options, resume=begun)
        # A trainer that was given up may live on, cut off: its successor takes the name over.
        with open_directory(config, options, f"{run_id}#{self.restarts}") as directory:
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
                RayEngine(room, config, own),
                feed=self.feed,
                stopper=self.stopper,
                patience=2.0 * limits().start,  # their processes are still to be made
            )


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
        hint="; --restarts K starts it again by itself",
    ) as run:
        own = identity(config, topology=TOPOLOGY)
        job = config, run.options, uuid.uuid4().hex, own, run.room
        run.start("the trainer", RayTrainer, 0, job, restarts)
        run.watch()
    # Fetch a run that was trained on another machine.
    out, storage = run.options.out, run.options.place("")
    if storage is not None and out is not None and not out.exists():
        storage.pull(out)
    return run.end()
