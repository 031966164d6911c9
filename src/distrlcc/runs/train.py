"""The training loop of one process: collect, learn, record. Read `train` top to bottom.

Several processes run `distrlcc.parallel.decentralized`: the same collector, learner and recorder.
"""

from __future__ import annotations

import time

from distrlcc.errors import ConfigError
from distrlcc.runs.progress import Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.trainer import Trainer
from distrlcc.runs.training import Training


def load(training: Training, run: RunDirectory) -> None:
    """Go on from a run's newest checkpoint, if it has one; follow with `RunDirectory.rewind`.

    Raises:
        CheckpointError: The checkpoint cannot be resumed.
        ConfigError: The steps are done already.
    """
    loaded = run.load()
    if loaded is not None:
        training.load_state_dict(loaded[0])
    done, total = training.counters.steps, training.config.total_steps
    if done >= total:
        raise ConfigError(
            f"{run.path} has done {done} of {total} steps already; go on with --set total_steps=N"
        )


def train(trainer: Trainer, run: RunDirectory, progress: Progress, *, resume: bool) -> int:
    """Train until the steps, the time or the user say stop.

    Args:
        trainer: What to train.
        run: Where everything is written; closed by the caller.
        progress: Where the user looks.
        resume: Go on from the run's newest checkpoint.

    Returns:
        0, or the number of the signal that ended the run early, after everything was saved.

    Raises:
        CheckpointError: The checkpoint cannot be resumed.
        ConfigError: The steps are done already.
        OutputError: The run directory cannot be written, or another process trains it.
    """
    config = trainer.config
    run.lock()
    if resume:
        load(trainer, run)
        run.rewind(trainer.counters.update)
    recorder, counters = Recorder(trainer, run, progress), trainer.counters
    begin = time.perf_counter() - counters.seconds
    with Stopper() as stopper:
        while counters.steps < config.total_steps and not stopper.signal:
            if config.max_seconds and counters.seconds >= config.max_seconds:
                break
            metrics, stats = trainer.iterate()
            counters.seconds = time.perf_counter() - begin
            recorder.record(metrics, stats)
        recorder.finish()
    return stopper.signal
