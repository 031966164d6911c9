"""The trainer of an actor-learner run, whatever engine has its workers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.engine import Engine
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.limits import limits
from distrlcc.runs.progress import Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState, build_learner
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Alone, train
from distrlcc.storage import Storage


@dataclass(frozen=True)
class ActorRun:
    """A run, as its processes know it."""

    config: RunConfig
    out: Path
    resume: bool = False
    tensorboard: bool = True
    storage: Storage | None = None
    """Where the durable copy goes."""
    allow_public: bool = False
    quiet: bool = False
    """Print nothing on standard output."""

    def directory(self) -> RunDirectory:
        """Open the run's directory."""
        directory = RunDirectory.resume(self.out, self.config, tensorboard=self.tensorboard)
        directory.storage = self.storage
        return directory

    def state(self, device: str = "cpu") -> RunState:
        """Set up what is trained, and load it where the run goes on.

        Raises:
            DistrlccError: See `ActorSource`, `build_learner` and `RunState.load`.
        """
        source = ActorSource(self.config)
        learner = build_learner(self.config, source.spec, source.reducer, device)
        state = RunState(self.config, source, learner, total_steps=self.config.total_steps)
        if self.resume:
            with self.directory() as directory:
                state.load(directory)
        return state


def train_on_engine(
    run: ActorRun,
    state: RunState,
    engine: Engine,
    *,
    feed: RemoteProgress | None = None,
    stopper: Stopper | None = None,
    patience: float | None = None,
) -> int:
    """Train with an engine's workers; return 0 or the signal that ended the run.

    A ``feed`` receives what would be shown here, a ``stopper`` the signals of another process. The
    first worker has ``patience`` seconds to start, `Limits.start` if None.

    Raises:
        DistrlccError: See `train`.
    """
    config, source = run.config, state.source
    assert isinstance(source, ActorSource)
    with ExitStack() as stack:
        # Open the run's directory, and what shows its progress and its workers.
        stopper = stack.enter_context(stopper or Stopper(launched=True))
        directory = stack.enter_context(run.directory())
        if run.resume:
            directory.rewind(state.counters.update)
        shown = feed or Progress(config.total_steps, max_seconds=config.max_seconds)
        stack.enter_context(shown)
        table = WorkerTable(shown, run.out / "workers.jsonl")
        # Start the workers, and train.
        patience = limits().start if patience is None else patience
        seconds = state.counters.seconds
        stack.enter_context(
            source.start(engine, table, stopper, seconds=seconds, patience=patience)
        )
        group = Alone(stopper, score_stopped=False)
        recorder = Recorder(state, group, lambda stack, kept: (directory, shown))
        stopped = train(state, group, recorder, stopper)
    # Say what came of it.
    source.queue.end()
    if run.quiet:
        return stopped
    say = feed.say if feed is not None else sys.stdout.write
    say(f"{state.summary()}\n{source.queue}\n")
    if not stopped:
        say(f"policy: {run.out / 'policy.safetensors'}\n")
    sys.stdout.flush()
    return stopped
