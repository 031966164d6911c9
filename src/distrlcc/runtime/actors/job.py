"""What each process of an actor-learner run does: train, or act until the trainer says stop."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import GroupError
from distrlcc.runtime.actors.actor import ActorJob
from distrlcc.runtime.actors.actor_learner import train_with_actors
from distrlcc.runtime.actors.actor_training import ActorTraining
from distrlcc.runtime.actors.board import Board
from distrlcc.runtime.actors.crew import Crew
from distrlcc.runtime.actors.rendezvous import Admission, admit, check_addresses, come
from distrlcc.runtime.engine import Engine
from distrlcc.runtime.identity import identity
from distrlcc.runtime.place import Place
from distrlcc.runtime.progress import Progress
from distrlcc.runtime.recorder import Recorder
from distrlcc.runtime.run_config import EXTENDABLE, RunConfig
from distrlcc.runtime.run_directory import RunDirectory
from distrlcc.runtime.scheduling import let_threads_preempt, switch_threads_often
from distrlcc.runtime.stopper import Stopper
from distrlcc.runtime.torch_rpc import TorchRpcEngine, close_rpc, host, open_rpc
from distrlcc.runtime.train import load
from distrlcc.runtime.training import policy_spec

SILENT_TRAINER_SECONDS = 20.0
"""A worker that the trainer has not called for this long ends, s."""
_TICK = 0.1
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


def actors_rank(place: Place, job: ActorsJob) -> int:
    """Be the trainer (slot 0) or a worker; return 0 or the signal that ended the run.

    Raises:
        DistrlccError: See `train_with_actors`, `admit` and `come`.
    """
    switch_threads_often()
    interface = check_addresses(place, allow_public=job.allow_public)
    own = identity(job.config, topology="actor-learner", processes=place.size)
    if place.slot == 0:
        training = _begin(place, job)
        let_threads_preempt(True)
        return _train(place, job, training, admit(place, interface, own))
    return _act(place, come(place, interface, own))


def _begin(place: Place, job: ActorsJob) -> ActorTraining:
    """Set up what is trained, and load it where the run goes on."""
    config = job.config
    spec = policy_spec(config, LinkVectorEnv(1, config.env))
    training = ActorTraining(config, spec, place.device)
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


def _train(place: Place, job: ActorsJob, training: ActorTraining, admission: Admission) -> int:
    open_rpc(place, admission.interface, 0, len(admission.workers) + 1)
    engine = TorchRpcEngine(admission.workers)
    try:
        stopped = train_on_engine(job, training, engine)
    finally:
        admission.store.set(f"{place.attempt}/finished", "")
    return stopped


def train_on_engine(job: ActorsJob, training: ActorTraining, engine: Engine) -> int:
    """Train with an engine's workers; return 0 or the signal that ended the run."""
    config = job.config
    with ExitStack() as stack:
        stopper = stack.enter_context(Stopper(launched=True))
        run = stack.enter_context(_directory(job))
        run.rewind(training.counters.update)
        progress = stack.enter_context(Progress(config.total_steps, max_seconds=config.max_seconds))
        recorder = Recorder(training, run, progress)
        board = Board(progress, run.path / "workers.jsonl")
        jobs = actor_jobs(job, training.first_step)
        capacity = _AHEAD * config.actors.per_update
        crew = stack.enter_context(Crew(engine, jobs, training.ledger, capacity=capacity))
        stopped = train_with_actors(training, crew, recorder, board, stopper)
    training.ledger.end()
    sys.stdout.write(f"{training.summary()}\n{training.ledger}\n")
    if not stopped:
        sys.stdout.write(f"policy: {job.out / 'policy.safetensors'}\n")
    sys.stdout.flush()
    return stopped


def _act(place: Place, admission: Admission) -> int:
    """Hold the actor that the trainer starts, until it is stopped.

    Raises:
        GroupError: The trainer is silent.
    """
    open_rpc(place, admission.interface, admission.rank, len(admission.workers) + 1)
    host.heard = time.monotonic()
    try:
        while host.object is None or not host.object.stopped:
            time.sleep(_TICK)
            silent = time.monotonic() - host.heard
            if silent > SILENT_TRAINER_SECONDS:
                raise GroupError(
                    f"the trainer has been silent for {SILENT_TRAINER_SECONDS:.0f} s; it is gone, "
                    "or has given this worker up"
                )
        time.sleep(_TICK)  # the answer is on its way
    finally:
        close_rpc()
    return 0
