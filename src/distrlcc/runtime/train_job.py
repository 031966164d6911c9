"""What each process of a decentralized run does: join, build its part, train."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.errors import ConfigError
from distrlcc.runtime.decentralized import train_together
from distrlcc.runtime.identity import identity
from distrlcc.runtime.process_group import Place, ProcessGroup
from distrlcc.runtime.progress import Progress
from distrlcc.runtime.recorder import Recorder
from distrlcc.runtime.run_config import EXTENDABLE, RunConfig
from distrlcc.runtime.run_directory import RunDirectory
from distrlcc.runtime.stopper import Stopper
from distrlcc.runtime.trainer import Share, Trainer


@dataclass(frozen=True)
class TrainJob:
    """A run, as its processes are told of it."""

    config: RunConfig
    out: Path
    resume: bool = False
    tensorboard: bool = True

    def directory(self) -> RunDirectory:
        """Open the run directory; make it where it is not, as on another machine."""
        if (self.out / "config.toml").exists():
            return RunDirectory.resume(
                self.out, self.config, tensorboard=self.tensorboard, extendable=EXTENDABLE
            )
        return RunDirectory.create(
            self.out,
            self.config,
            recipe=self.config.recipe,
            seeds={"seed": self.config.seed},
            tensorboard=self.tensorboard,
            extendable=EXTENDABLE,
        )


def train_rank(place: Place, job: TrainJob) -> int:
    """Train as one rank; return 0 or the signal that ended it.

    Raises:
        DistrlccError: See `train_together`, `ProcessGroup` and `Trainer`.
    """
    config = job.config
    group = ProcessGroup(place, identity(config, processes=place.size))
    share = Share.of(config.num_envs, place.slot, place.size)
    trainer = Trainer(config, share, group, place.device)
    if job.resume and place.slot == 0:
        _load(trainer, job)

    def open_recorder(stack: ExitStack) -> Recorder:
        run = stack.enter_context(job.directory())
        if trainer.counters.update > 1:
            run.rewind(trainer.counters.update - 1)
        progress = Progress(config.total_steps, max_seconds=config.max_seconds)
        return Recorder(trainer, run, stack.enter_context(progress), shared_only=True)

    with Stopper(launched=True) as stopper, group:
        stopped = train_together(trainer, group, open_recorder, stopper)
        led = group.leads
    if led:
        sys.stdout.write(trainer.summary() + "\n")
        if not stopped:
            sys.stdout.write(f"policy: {job.out / 'policy.safetensors'}\n")
        sys.stdout.flush()
    return stopped


def _load(trainer: Trainer, job: TrainJob) -> None:
    with job.directory() as run:
        loaded = run.load()
    if loaded is None:
        return
    trainer.load_state_dict(loaded[0])
    done, total = trainer.counters.steps, job.config.total_steps
    if done >= total:
        raise ConfigError(
            f"{job.out} has done {done} of {total} steps already; go on with --set total_steps=N"
        )
