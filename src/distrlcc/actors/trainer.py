"""The trainer of an actor-learner run, or one of several, whatever engine has its workers.

Several are a decentralized group whose ranks have workers in the place of environments.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack

from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.engine import Engine
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.parallel.start import TrainJob, train_group
from distrlcc.runs.leadership import run_of
from distrlcc.runs.progress import Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import RunState, build_learner
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Alone, train
from distrlcc.storage import say


def actor_state(job: TrainJob, device: str = "cpu", ranks: ProcessGroup | None = None) -> RunState:
    """Set up what is trained, and load it where the run goes on; ``ranks`` are several learners.

    Raises what `ActorSource`, `build_learner` and `RunState.load` raise.
    """
    assert isinstance(job.config, RunConfig)
    slot = 0 if ranks is None else ranks.spec.slot
    source = ActorSource(job.config, slot)
    learner = build_learner(job.config, source.spec, ranks or source.reducer, device)
    state = RunState(job.config, source, learner, total_steps=job.config.total_steps)
    if job.resume and slot == 0:
        with job.directory(job.run) as directory:
            state.load(directory)
    return state


def train_on_engine(
    job: TrainJob,
    state: RunState,
    make: Callable[[], Engine],
    *,
    ranks: ProcessGroup | None = None,
    feed: RemoteProgress | None = None,
    stopper: Stopper | None = None,
    patience: float,
) -> int:
    """Train with an engine's workers, alone or as one of several learners.

    A ``feed`` receives what would be shown here, a ``stopper`` the signals of another process. The
    first worker has ``patience`` seconds to start. Returns 0, or the signal that ended the run or
    this learner's part in it; raises what `train` raises.
    """
    source = state.source
    assert isinstance(source, ActorSource)
    stopper = stopper or Stopper(launched=True)
    with ExitStack() as stack:
        stack.callback(source.close, -1)
        here = run_of(job.out) == job.run  # then all learners write of their workers there
        note = say if feed is None else feed.note
        table = WorkerTable(job.out / "workers.jsonl" if here else None, note)
        source.start(make, table, stopper, state, patience)
        if ranks is not None:
            stopped = train_group(job, ranks, state, stopper, feed, table.lead)
            source.queue.end()
            if job.show:
                note(f"learner {ranks.spec.slot}: {source.queue}")
            return stopped
        # Open the run's directory, and what shows its progress and its workers.
        stack.enter_context(stopper)
        run = stack.enter_context(job.directory(job.run))
        run.lead()
        if job.resume:
            run.rewind(state.counters.update)
        limit = job.config.max_seconds
        shown = feed or Progress(state.total_steps, max_seconds=limit, show=job.show)
        stack.enter_context(shown)
        table.lead(run, shown)
        group = Alone(stopper, score_stopped=False)
        recorder = Recorder(state, group, lambda stack: (run, shown))
        stopped = train(state, group, recorder, stopper)
    # Say what came of it.
    source.queue.end()
    if not job.show:
        return stopped
    out = feed.say if feed is not None else sys.stdout.write
    out(f"{state.summary()}\n{source.queue}\n")
    if not stopped:
        out(f"policy: {run.policy_path}\n")
    sys.stdout.flush()
    return stopped
