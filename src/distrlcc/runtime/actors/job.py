"""What the trainer of an actor-learner run does, whatever engine has its workers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.runtime.actors.actor import ActorJob
from distrlcc.runtime.actors.actor_learner import train_with_actors
from distrlcc.runtime.actors.actor_training import ActorTraining
from distrlcc.runtime.actors.board import Board
from distrlcc.runtime.actors.crew import Crew
from distrlcc.runtime.engine import Engine
from distrlcc.runtime.progress import Progress
from distrlcc.runtime.recorder import Recorder
from distrlcc.runtime.run_config import EXTENDABLE, RunConfig
from distrlcc.runtime.run_directory import RunDirectory
from distrlcc.runtime.stopper import Stopper
from distrlcc.runtime.train import load
from distrlcc.runtime.training import policy_spec

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


def build_training(job: ActorsJob, device: str = "cpu") -> ActorTraining:
    """Set up what is trained, and load it where the run goes on."""
    config = job.config
    spec = policy_spec(config, LinkVectorEnv(1, config.env))
    training = ActorTraining(config, spec, device)
    if job.resume:
        with _directory(job) as run:
            load(training, run)
    return training


def _directory(job: ActorsJob) -> RunDirectory:
    return RunDirectory.resume(
        job.out, job.config, tensorboard=job.tensorboard, extendable=EXTENDABLE
    )


def actor_jobs(job: ActorsJob, first_step: int) -> list[ActorJob]:
    """Return what each planned worker does."""
    actors = job.config.actors
    return [
        ActorJob(job.config, index, link, actors.envs_per_worker, job.pace_seconds, first_step)
        for index, link in enumerate(actors.links)
    ]


def train_on_engine(job: ActorsJob, training: ActorTraining, engine: Engine) -> int:
    """Train with an engine's workers; return 0 or the signal that ended the run."""
    config = job.config
    with ExitStack() as stack:
        stopper = stack.enter_context(Stopper(launched=True))
        run = stack.enter_context(_directory(job))
        if job.resume:
            run.rewind(training.counters.update)
        progress = stack.enter_context(Progress(config.total_steps, max_seconds=config.max_seconds))
        recorder = Recorder(training, run, progress)
        board = Board(progress, run.path / "workers.jsonl")
        jobs = actor_jobs(job, training.first_step)
        capacity = _AHEAD * config.actors.per_update
        crew = Crew(
            engine, jobs, training.ledger, capacity=capacity, stopping=lambda: bool(stopper.signal)
        )
        stack.enter_context(crew)
        stopped = train_with_actors(training, crew, recorder, board, stopper)
    training.ledger.end()
    if job.quiet:
        return stopped
    sys.stdout.write(f"{training.summary()}\n{training.ledger}\n")
    if not stopped:
        sys.stdout.write(f"policy: {job.out / 'policy.safetensors'}\n")
    sys.stdout.flush()
    return stopped
