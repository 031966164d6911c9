"""What each process of a decentralized run does: join, build its part, train."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.data.reader import StoredData
from distrlcc.files import write_atomically
from distrlcc.parallel.decentralized import ElasticGroup
from distrlcc.parallel.place import Place
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.runs.identity import identity
from distrlcc.runs.imitation import SequenceSource, imitation_run
from distrlcc.runs.progress import Display, Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.remote_progress import RemoteProgress
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState, env_run
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import train
from distrlcc.storage import Storage


@dataclass(frozen=True)
class TrainJob:
    """A run, as its processes are told of it."""

    config: RunConfig | ImitateConfig
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
            return RunDirectory.resume(out, self.config, tensorboard=self.tensorboard)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            out = out.with_name(f"{out.name}-{run[:8]}")
        seed, tensorboard = self.config.seed, self.tensorboard
        directory = RunDirectory.create(out, self.config, seed=seed, tensorboard=tensorboard)
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
    place: Place, job: TrainJob, feed: RemoteProgress | None = None, stopper: Stopper | None = None
) -> int:
    """Train as one rank; return 0 or the signal that ended it.

    Args:
        place: Where this process stands.
        job: The run.
        feed: Receives what rank 0 shows; else it is shown here.
        stopper: Hears of signals; this process's unless given.

    Raises:
        DistrlccError: See `train`, `ProcessGroup` and `new_run`.
    """
    config, stopper = job.config, stopper or Stopper(launched=True)
    own = identity(
        config,
        processes=place.size,
        device=place.device.partition(":")[0],
        elastic="yes" if place.elastic else "no",
    )
    ranks = ProcessGroup(place, own, job.run)
    state = new_run(config, ranks)
    if job.resume and (place.slot == 0 or _run_of(job.out) == job.run):
        with job.directory(job.run) as run:
            state.load(run)

    def open_run(stack: ExitStack, kept: int) -> tuple[RunDirectory, Display]:
        run = stack.enter_context(job.directory(ranks.run))
        if job.resume or kept > 0:
            run.rewind(kept)
        shown = feed or Progress(state.total_steps, max_seconds=config.max_seconds)
        stack.enter_context(shown)
        return run, shown

    group = ElasticGroup(ranks, stopper)
    with ranks, stopper, Recorder(state, group, open_run, shared_only=True) as recorder:
        if isinstance(state.source, SequenceSource):
            state.source.interrupted = recorder.interruption(stopper, group.greatest)
        stopped = train(state, group, recorder, stopper)
    if recorder.policy_path:
        say = feed.say if feed is not None else sys.stdout.write
        say(state.summary() + "\n")
        if not stopped:
            say(f"policy: {recorder.policy_path}\n")
        sys.stdout.flush()
    return stopped


def new_run(config: RunConfig | ImitateConfig, ranks: ProcessGroup) -> RunState:
    """Return a rank's part of a run.

    Raises:
        DistrlccError: See `env_run` and `imitation_run`.
    """
    place = ranks.place
    if isinstance(config, ImitateConfig):
        data = StoredData(Path(config.data))
        return imitation_run(config, data, place.slot, place.size, ranks)
    share = Share.of(config.num_envs, place.slot, place.size, config.env.agents)
    return env_run(config, share, ranks, place.device)
