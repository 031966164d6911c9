"""What the trainer of an actor-learner run does, whatever engine has its workers."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.actors.actor_learner import train_with_actors
from distrlcc.actors.actor_training import ActorTraining
from distrlcc.actors.engine import Engine
from distrlcc.actors.worker_pool import START_SECONDS, WorkerPool
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.runs.feed import Feed
from distrlcc.runs.progress import Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import EXTENDABLE, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import load
from distrlcc.runs.training import policy_spec
from distrlcc.storage.storage import Storage

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


def build_training(job: ActorsJob, device: str = "cpu") -> ActorTraining:
    """Set up what is trained, and load it where the run goes on."""
    config = job.config
    check_agents(config)
    agents = config.env.agents
    spec = policy_spec(config, LinkVectorEnv(agents, config.env))
    training = ActorTraining(config, spec, device)
    if job.resume:
        with _directory(job) as run:
            load(training, run)
    return training


def _directory(job: ActorsJob) -> RunDirectory:
    directory = RunDirectory.resume(
        job.out, job.config, tensorboard=job.tensorboard, extendable=EXTENDABLE
    )
    directory.storage = job.storage
    return directory


def train_on_engine(
    job: ActorsJob,
    training: ActorTraining,
    engine: Engine,
    *,
    feed: Feed | None = None,
    stopper: Stopper | None = None,
    patience: float = START_SECONDS,
) -> int:
    """Train with an engine's workers; return 0 or the signal that ended the run.

    Args:
        job: The run.
        training: What is trained.
        engine: Has the workers.
        feed: Takes what is to be shown; else it is shown here.
        stopper: Hears of signals; this process's unless given.
        patience: Time that the first worker has to begin, s.
    """
    config = job.config
    with ExitStack() as stack:
        stopper = stack.enter_context(stopper or Stopper(launched=True))
        run = stack.enter_context(_directory(job))
        if job.resume:
            run.rewind(training.counters.update)
        shown = feed or Progress(config.total_steps, max_seconds=config.max_seconds)
        stack.enter_context(shown)
        recorder = Recorder(training, run, shown)
        table = WorkerTable(shown, run.path / "workers.jsonl")
        capacity = _AHEAD * config.actors.per_update
        pool = WorkerPool(
            engine,
            config,
            training.ledger,
            capacity=capacity,
            first_step=training.fresh_step,
            stopping=lambda: bool(stopper.signal),
            patience=patience,
        )
        stack.enter_context(pool)
        stopped = train_with_actors(training, pool, recorder, table, stopper)
    training.ledger.end()
    if job.quiet:
        return stopped
    say = feed.say if feed is not None else sys.stdout.write
    say(f"{training.summary()}\n{training.ledger}\n")
    if not stopped:
        say(f"policy: {job.out / 'policy.safetensors'}\n")
    sys.stdout.flush()
    return stopped
