"""What the trainer of an actor-learner run does, whatever engine has its workers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.actors.actor import ActorJob
from distrlcc.actors.actor_source import ActorSource, actor_run
from distrlcc.actors.board import Board
from distrlcc.actors.crew import START_SECONDS, Crew
from distrlcc.actors.engine import Engine
from distrlcc.errors import ConfigError
from distrlcc.runs.feed import Feed
from distrlcc.runs.progress import Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import EXTENDABLE, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Alone, train
from distrlcc.storage import Storage

_AHEAD = 2
"""Updates' worth of segments that may wait for the trainer."""


@dataclass(frozen=True)
class ActorsJob:
    """A run, as its processes are told of it."""

    config: RunConfig
    out: Path
    resume: bool = False
    tensorboard: bool = True
    allow_public: bool = False
    pace_seconds: float = 0.0
    quiet: bool = False
    """Print nothing on standard output."""
    storage: Storage | None = None
    """Where the durable copy goes."""


def check_agents(config: RunConfig) -> None:
    """See that a link's agents are on one worker.

    Raises:
        ConfigError: They are not.
    """
    agents = config.env.agents
    if config.actors.envs_per_worker % agents:
        raise ConfigError(
            f"actors.envs_per_worker is {config.actors.envs_per_worker}; expected a multiple of "
            f"env.agents, {agents}"
        )


def build_training(job: ActorsJob, device: str = "cpu") -> RunState:
    """Set up what is trained, and load it where the run goes on."""
    check_agents(job.config)
    state = actor_run(job.config, device)
    if job.resume:
        with _directory(job) as run:
            state.load(run)
    return state


def _directory(job: ActorsJob) -> RunDirectory:
    directory = RunDirectory.resume(
        job.out, job.config, tensorboard=job.tensorboard, extendable=EXTENDABLE
    )
    directory.storage = job.storage
    return directory


def actor_job(job: ActorsJob, index: int, first_step: int) -> ActorJob:
    """Return what a worker does; workers beyond the plan take the links in turn again."""
    actors = job.config.actors
    link = actors.links[index % len(actors.links)]
    return ActorJob(job.config, index, link, actors.envs_per_worker, job.pace_seconds, first_step)


def train_on_engine(
    job: ActorsJob,
    state: RunState,
    engine: Engine,
    *,
    feed: Feed | None = None,
    stopper: Stopper | None = None,
    patience: float = START_SECONDS,
) -> int:
    """Train with an engine's workers; return 0 or the signal that ended the run.

    Args:
        job: The run.
        state: What is trained; its source is an `ActorSource`.
        engine: Has the workers.
        feed: Takes what is to be shown; else it is shown here.
        stopper: Hears of signals; this process's unless given.
        patience: Time that the first worker has to begin, s.
    """
    config, source = job.config, state.source
    assert isinstance(source, ActorSource)
    with ExitStack() as stack:
        stopper = stack.enter_context(stopper or Stopper(launched=True))
        run = stack.enter_context(_directory(job))
        if job.resume:
            run.rewind(state.counters.update)
        shown = feed or Progress(config.total_steps, max_seconds=config.max_seconds)
        stack.enter_context(shown)
        board = Board(shown, run.path / "workers.jsonl")
        capacity = _AHEAD * config.actors.per_update
        crew = Crew(
            engine,
            lambda index: actor_job(job, index, source.fresh_step()),
            source.ledger,
            capacity=capacity,
            stopping=lambda: bool(stopper.signal),
            patience=patience,
        )
        stack.enter_context(crew)
        source.start(crew, board, stopper, state.counters.seconds)
        group = Alone(stopper, score_stopped=False)
        recorder = Recorder(state, group, lambda stack, kept: (run, shown))
        stopped = train(state, group, recorder, stopper)
    source.ledger.end()
    if job.quiet:
        return stopped
    say = feed.say if feed is not None else sys.stdout.write
    say(f"{state.summary()}\n{source.ledger}\n")
    if not stopped:
        say(f"policy: {job.out / 'policy.safetensors'}\n")
    sys.stdout.flush()
    return stopped
