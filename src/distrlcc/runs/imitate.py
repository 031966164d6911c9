"""Imitation from a data set on any number of ranks. Read `imitate_rank` top to bottom."""

from __future__ import annotations

import time
from contextlib import ExitStack

from distrlcc.data.reader import StoredData
from distrlcc.errors import ConfigError
from distrlcc.learn.data_parallel import DataParallel
from distrlcc.learn.threads import limit_threads
from distrlcc.runs.imitate_config import ImitateConfig
from distrlcc.runs.imitation_recorder import ImitationRecorder
from distrlcc.runs.imitation_trainer import ImitationCounters, ImitationTrainer
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.stopper import Stopper


def imitate_rank(
    config: ImitateConfig,
    data: StoredData,
    group: DataParallel,
    run: RunDirectory | None,
    *,
    resume: bool,
    launched: bool = False,
) -> ImitationCounters:
    """Train until the epochs are done or a user says stop; every rank calls this.

    Args:
        config: The same on every rank.
        data: The data set, opened by this rank.
        group: The ranks.
        run: Where rank 0 writes everything; None on the others. Closed by the caller.
        resume: Go on from the last epoch that the run has done.
        launched: Whether a launcher watches this process; see `Stopper`.

    Returns:
        How far it came. The policy file is there unless a signal came in the first epoch.

    Raises:
        CheckpointError: The checkpoint cannot be resumed.
        ConfigError: The epochs are done already, or the configuration does not fit the data.
        DatasetError: The data set is damaged.
        OutputError: The run directory cannot be written, or another process trains it.
    """
    limit_threads()
    trainer = ImitationTrainer(config, data, group)
    with ExitStack() as stack:
        recorder: ImitationRecorder | None = None
        if run is not None:
            progress = stack.enter_context(Progress(trainer.total_steps))
            recorder = ImitationRecorder(trainer, run, progress)
            recorder.open(resume=resume)
        return _imitate(trainer, recorder, Stopper(launched=launched))


def _imitate(
    trainer: ImitationTrainer, recorder: ImitationRecorder | None, stopper: Stopper
) -> ImitationCounters:
    config, group = trainer.config, trainer.group
    group.wait()
    trainer.share_state()
    counters = trainer.counters
    if counters.epoch >= config.epochs:
        raise ConfigError(
            f"the run has done {counters.epoch} of {config.epochs} epochs already; go on with "
            "--epochs N"
        )
    if counters.epoch == 0:
        trainer.imitator.examine(trainer.data, trainer.training_episodes)
    begin = time.perf_counter() - counters.seconds
    group.wait()
    with stopper:

        def stopped(steps: int) -> bool:
            if recorder is not None:
                recorder.show(steps)
            return trainer.heard(stopper)

        while counters.epoch < config.epochs:
            metrics = trainer.epoch(stopped)
            if metrics is None:
                break
            counters.seconds = metrics["seconds"] = time.perf_counter() - begin
            if recorder is not None:
                recorder.record(metrics)
            group.wait()
            if trainer.heard(stopper):
                break
    return counters
