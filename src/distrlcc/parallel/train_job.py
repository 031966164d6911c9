"""What each process of a decentralized run does: join, build its part, train."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.files import write_atomically
from distrlcc.parallel.decentralized import train_together
from distrlcc.parallel.place import Place
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.runs.feed import Feed
from distrlcc.runs.identity import identity
from distrlcc.runs.progress import Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import EXTENDABLE, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import load
from distrlcc.runs.trainer import Share, Trainer
from distrlcc.storage import Storage


@dataclass(frozen=True)
class TrainJob:
    """A run, as its processes are told of it."""

    config: RunConfig
    out: Path
    resume: bool = False
    tensorboard: bool = True
    run: str = ""
    """Id of the run; known to node 0, which tells the others."""
    storage: Storage | None = None
    """Where the durable copy goes."""

    def directory(self, run: str) -> RunDirectory:
        """Open the run's directory; make one where there is none, as on another machine.

        A folder that holds anything else is left alone, and one beside it is made.
        """
        directory = self._directory(run)
        if self.storage is not None:
            directory.storage = Storage(self.storage.url, self.storage.name, run)
        return directory

    def _directory(self, run: str) -> RunDirectory:
        out = self.out
        if _run_of(out) == run:
            return RunDirectory.resume(
                out, self.config, tensorboard=self.tensorboard, extendable=EXTENDABLE
            )
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            out = out.with_name(f"{out.name}-{run[:8]}")
        directory = RunDirectory.create(
            out,
            self.config,
            recipe=self.config.recipe,
            seeds={"seed": self.config.seed},
            tensorboard=self.tensorboard,
            extendable=EXTENDABLE,
        )
        mark_run(out, run)
        return directory


_ID = ".run"


def mark_run(out: Path, run: str) -> None:
    """Note which run writes to a directory, so that whoever takes over knows it again."""
    write_atomically(out / _ID, run.encode())


def _run_of(out: Path) -> str | None:
    try:
        return (out / _ID).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def train_rank(
    place: Place, job: TrainJob, feed: Feed | None = None, stopper: Stopper | None = None
) -> int:
    """Train as one rank; return 0 or the signal that ended it.

    Args:
        place: Where this process stands.
        job: The run.
        feed: Takes what rank 0 shows; else it shows it here.
        stopper: Hears of signals; this process's unless given.

    Raises:
        DistrlccError: See `train_together`, `ProcessGroup` and `Trainer`.
    """
    config = job.config
    own = identity(
        config,
        processes=place.size,
        device=place.device.partition(":")[0],
        elastic="yes" if place.elastic else "no",
    )
    group = ProcessGroup(place, own, job.run)
    share = Share.of(config.num_envs, place.slot, place.size, config.env.agents)
    trainer = Trainer(config, share, group, place.device)
    if job.resume and (place.slot == 0 or _run_of(job.out) == job.run):
        with job.directory(job.run) as run:
            load(trainer, run)

    paths = [job.out]

    def open_recorder(stack: ExitStack, kept: int) -> Recorder:
        run = stack.enter_context(job.directory(group.run))
        if job.resume or kept > 0:
            run.rewind(kept)
        paths.append(run.path)
        shown = feed or Progress(config.total_steps, max_seconds=config.max_seconds)
        stack.enter_context(shown)
        return Recorder(trainer, run, shown, shared_only=True, leads=group.still_leads)

    with group, stopper or Stopper(launched=True) as stopper:  # joining has nothing to save
        stopped = train_together(trainer, group, open_recorder, stopper)
        led = group.leads
    if led:
        say = feed.say if feed is not None else sys.stdout.write
        say(trainer.summary() + "\n")
        if not stopped:
            say(f"policy: {paths[-1] / 'policy.safetensors'}\n")
        sys.stdout.flush()
    return stopped
