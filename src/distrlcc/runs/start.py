"""Begins a run's directory, or opens it again, and trains in this process alone."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from distrlcc.runs.imitation import SequenceSource
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory, fresh_folder
from distrlcc.runs.run_state import RunState, require_more
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on, stored
from distrlcc.runs.train import Alone, train
from distrlcc.storage import say


def run_directory(
    config: RunConfig | ImitateConfig, out: Path, *, resume: bool, tensorboard: bool
) -> RunDirectory:
    """Begin a run's directory, or open it to go on; see `RunDirectory`."""
    if resume:
        return RunDirectory.resume(out, config, tensorboard=tensorboard)
    return RunDirectory.create(out, config, seed=config.seed, tensorboard=tensorboard)


@contextmanager
def open_directory(
    config: RunConfig | ImitateConfig, options: RunOptions, run: str = ""
) -> Iterator[RunDirectory]:
    """Begin a run's directory, or open it to go on, and lock it; store its end at last.

    If another process opens it again, ``run`` names the run.
    """
    options = replace(options, out=options.out or fresh_folder(Path("runs"), config.recipe))
    assert options.out is not None
    options.trackers.check()
    Stopper.newest = 0
    storage = options.place(run or uuid.uuid4().hex)
    with ExitStack() as stack:
        if storage is not None:
            stack.enter_context(stored(storage, options.out, resume=options.resume))
        directory = run_directory(
            config, options.out, resume=options.resume, tensorboard=options.tensorboard
        )
        directory.storage = storage
        stack.enter_context(directory)
        directory.lock()
        if options.resume:
            require_more(config, directory)
        if run:
            directory.belong_to(run)
        try:
            with options.trackers.follow(directory.path, show=options.show) as how:
                yield directory
                how += ["KILLED"] * (Stopper.newest > 0)
        except (Exception, SystemExit):  # a user's code may raise either
            if not options.resume:  # so that the same command works once the cause is mended
                directory.discard()
                if directory.path.exists() and not directory.checkpoint_path("latest").exists():
                    say(f"nothing was saved: {directory.path} has no checkpoint yet")
            raise


def train_alone(state: RunState, options: RunOptions) -> int:
    """Train in this process until the end, and say what came of it; return the exit code."""
    config, show = state.config, options.show
    with Progress(state.total_steps, max_seconds=config.max_seconds, show=show) as progress:
        stopped, run = run_alone(state, options, progress)
    if not show:
        return 128 + stopped if stopped else 0
    sys.stdout.write(f"{state.summary()}\n")
    if not stopped:
        sys.stdout.write(f"policy: {run.policy_path}\n")
        return 0
    again = f"distrlcc {config.command} {go_on(run.path, run.storage)}"
    sys.stderr.write(f"distrlcc: stopped; saved. Go on with: {again}\n")
    return 128 + stopped


def run_alone(state: RunState, options: RunOptions, progress: Progress) -> tuple[int, RunDirectory]:
    """Train in this process until the end; return the signal that ended it, or 0, and its run."""
    with open_directory(state.config, options) as run:
        if options.resume:
            state.load(run)
        run.belong_to(uuid.uuid4().hex)  # not before: a resume that is refused changes nothing
        run.lead()
        if options.resume:
            run.rewind(state.counters.update)
        with Stopper() as stopper:
            group = Alone(stopper, watch=options.watch)
            recorder = Recorder(state, group, lambda stack: (run, progress))
            if isinstance(state.source, SequenceSource):
                state.source.interrupted = recorder.interruption(stopper)
            return train(state, group, recorder, stopper), run
