"""The trainer of an actor-learner run, whatever engine has its workers."""

import sys
from contextlib import ExitStack

from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.engine import Engine
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.parallel.start import TrainJob
from distrlcc.runs.progress import Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import RunState, build_learner
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Alone, train


def actor_state(job: TrainJob, device: str = "cpu") -> RunState:
    """Set up what is trained, and load it where the run goes on.

    Raises:
        DistrlccError: See `ActorSource`, `build_learner` and `RunState.load`.
    """
    assert isinstance(job.config, RunConfig)
    source = ActorSource(job.config)
    learner = build_learner(job.config, source.spec, source.reducer, device)
    state = RunState(job.config, source, learner, total_steps=job.config.total_steps)
    if job.resume:
        with job.directory(job.run) as directory:
            state.load(directory)
    return state


def train_on_engine(
    job: TrainJob,
    state: RunState,
    engine: Engine,
    *,
    feed: RemoteProgress | None = None,
    stopper: Stopper | None = None,
    patience: float,
) -> int:
    """Train with an engine's workers; return 0 or the signal that ended the run.

    A ``feed`` receives what would be shown here, a ``stopper`` the signals of another process. The
    first worker has ``patience`` seconds to start.

    Raises:
        DistrlccError: See `train`.
    """
    source = state.source
    assert isinstance(source, ActorSource)
    with ExitStack() as stack:
        # Open the run's directory, and what shows its progress and its workers.
        stopper = stack.enter_context(stopper or Stopper(launched=True))
        run = stack.enter_context(job.directory(job.run))
        run.lead()
        if job.resume:
            run.rewind(state.counters.update)
        limit = job.config.max_seconds
        shown = feed or Progress(state.total_steps, max_seconds=limit, show=job.show)
        stack.enter_context(shown)
        table = WorkerTable(shown, job.out / "workers.jsonl", run.check)
        # Start the workers, and train.
        seconds = state.counters.seconds
        stack.enter_context(
            source.start(engine, table, stopper, seconds=seconds, patience=patience)
        )
        group = Alone(stopper, score_stopped=False)
        recorder = Recorder(state, group, lambda stack: (run, shown))
        stopped = train(state, group, recorder, stopper)
    # Say what came of it.
    source.queue.end()
    if not job.show:
        return stopped
    say = feed.say if feed is not None else sys.stdout.write
    say(f"{state.summary()}\n{source.queue}\n")
    if not stopped:
        say(f"policy: {run.policy_path}\n")
    sys.stdout.flush()
    return stopped
