"""Begins a run's directory, or opens it again, and trains in this process alone."""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from pathlib import Path

from distrlcc.errors import ConfigError
from distrlcc.runs.imitation import SequenceSource
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory, make_fresh
from distrlcc.runs.run_state import RunState, done
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on, stored
from distrlcc.runs.train import Alone, train
from distrlcc.storage import say


@contextmanager
def open_directory(
    config: RunConfig | ImitateConfig, options: RunOptions, run: str = "", *, alone: bool = False
) -> Iterator[RunDirectory]:
    """Begin a run's directory, or go on with it, locked; store its end. ``run`` names the run.

    If it is ``alone``, no other machine writes there: it goes again where nothing was saved.
    """
    options.trackers.check()
    Stopper.newest = 0
    with ExitStack() as stack:
        out = stack.enter_context(run_folder(config, options))
        storage = replace(options, out=out).place(run or uuid.uuid4().hex)
        if storage is not None:
            stack.enter_context(stored(storage, out, resume=options.resume))
        directory = RunDirectory.open(
            out, config, resume=options.resume, tensorboard=options.tensorboard
        )
        directory.storage = storage
        stack.enter_context(directory)
        directory.lock()
        if options.resume and (over := done(config, directory)):
            raise ConfigError(f"{directory.path} has done {over}")
        if run:
            directory.belong_to(run)
        try:
            with options.trackers.follow(directory.path, show=options.show) as how:
                yield directory
                how += ["KILLED"] * (Stopper.newest > 0)
        except BaseException:  # a user's code may raise any, and a second Ctrl-C ends it at once
            if not options.resume:  # so that the same command works once the cause is mended
                directory.discard()
                if directory.path.exists() and not directory.checkpoint_path("latest").exists():
                    say(f"nothing was saved: {directory.path} has no checkpoint yet")
            raise
        if alone and not options.resume:  # a signal may come before anything is saved
            directory.discard()


@contextmanager
def run_folder(config: RunConfig | ImitateConfig, options: RunOptions) -> Iterator[Path]:
    """Yield where a run writes: as told, or a new folder, which goes again if it stays empty."""
    out = options.out or make_fresh(Path("runs"), config.recipe)
    try:
        yield out
    finally:
        if options.out is None:  # it stays empty where the run is refused
            with suppress(OSError):
                out.rmdir()


def train_alone(state: RunState, options: RunOptions) -> int:
    """Train in this process until the end, and say what came of it; return the exit code."""
    config, show = state.config, options.show
    with Progress(state.total_steps, max_seconds=config.max_seconds, show=show) as progress:
        stopped, run = run_alone(state, options, progress)
    if show:
        tell(state.summary(), stopped, run.policy_path)
    if show and stopped:
        say(f"stopped; saved. Go on with: distrlcc {config.command} {go_on(run.path, run.storage)}")
    return 128 + stopped if stopped else 0


def tell(lines: str, stopped: int, policy: object, feed: RemoteProgress | None = None) -> None:
    """Say what came of a run, and where its policy is, unless a signal has ``stopped`` it."""
    write = partial(print, end="", flush=True) if feed is None else feed.say
    try:
        write(f"{lines}\n" if stopped else f"{lines}\npolicy: {policy}\n")
    except OSError:
        if parent_process() is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries it again at the end


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
