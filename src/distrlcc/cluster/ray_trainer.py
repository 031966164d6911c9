"""The Ray actor that is the trainer of an actor-learner run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distrlcc.actors.trainer import ActorRun, train_on_engine
from distrlcc.actors.worker_pool import START_SECONDS
from distrlcc.cluster.ray_engine import RayEngine
from distrlcc.cluster.ray_placement import Reservation
from distrlcc.parallel.start import open_directory
from distrlcc.runs.feed import Feed, News
from distrlcc.runs.identity import identity
from distrlcc.runs.options import RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.stopper import Stopper
from distrlcc.scheduling import let_threads_preempt, switch_threads_often

TOPOLOGY = "actor-learner"


@dataclass(frozen=True)
class RayRun:
    """A run, as its trainer is told of it."""

    config: RunConfig
    options: RunOptions
    run: str
    """Its id; the same for each trainer, one after the other."""
    attempt: int = 0
    """Trainers before this one."""


class RayTrainer:
    """Trains in one thread and answers in others."""

    def __init__(self) -> None:
        """Do nothing yet."""
        self._feed = Feed()
        self._stopper = Stopper(launched=True)

    def identity(self, config: RunConfig) -> dict[str, str]:
        """Say what runs here."""
        return identity(config, topology=TOPOLOGY)

    def train(self, job: RayRun, reservation: Reservation) -> int:
        """Train until the end; return 0 or the signal that ended it.

        Raises:
            DistrlccError: See `open_directory` and `train_on_engine`.
        """
        switch_threads_often()
        self._feed.take_warnings()
        config, options = job.config, job.options
        if job.attempt and not options.resume:
            options = replace(options, resume=_has_begun(options, job.run))
        device = "cuda:0" if config.resources.learner_gpus else "cpu"
        # A trainer that was given up may live on, cut off: who comes later takes the name over.
        name = f"{job.run}#{job.attempt}"
        with open_directory(config, options, name) as directory:
            directory.lock()
            told = ActorRun(
                config,
                directory.path,
                options.resume,
                options.tensorboard,
                storage=directory.storage,
            )
            state = told.state(device)
            if told.resume or job.attempt:
                update = state.counters.update
                self._feed.note(
                    f"going on after update {update}"
                    if update
                    else "no checkpoint yet: from the start"
                )
            let_threads_preempt(True)
            return train_on_engine(
                told,
                state,
                RayEngine(reservation, config, self.identity(config)),
                feed=self._feed,
                stopper=self._stopper,
                patience=2.0 * START_SECONDS,  # their processes are still to be made
            )

    def news(self) -> News:
        """Return what is to be shown."""
        return self._feed.news()

    def stop(self, number: int) -> None:
        """Save and end, as if this signal had come."""
        self._stopper.request(number)


def _has_begun(options: RunOptions, run: str) -> bool:
    """Say whether an earlier trainer left something to go on with."""
    if options.out is not None and (options.out / "config.toml").exists():
        return True
    storage = options.place(run)
    return storage is not None and storage.holds_run()
