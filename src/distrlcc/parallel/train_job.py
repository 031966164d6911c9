"""What each process of a decentralized run does: join, build its part, train."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.data.reader import StoredData
from distrlcc.files import write_atomically
from distrlcc.parallel.decentralized import ElasticGroup
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.runs.identity import identity
from distrlcc.runs.imitation import SequenceSource, imitation_run
from distrlcc.runs.progress import Display, Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import env_run
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import train
from distrlcc.storage import Storage


@dataclass(frozen=True)
class TrainJob:
    """A run, as its processes receive it."""

    config: RunConfig | ImitateConfig
    out: Path
    resume: bool = False
    tensorboard: bool = True
    run: str = ""
    """Id of the run; node 0's is valid for all."""
    storage: Storage | None = None
    """Where the durable copy goes."""

    def directory(self, run: str) -> RunDirectory:
        """Open the run's directory; make one where there is none, as on another machine.

        A folder that holds anything else is left alone, and one beside it is made.
        """
        out = self.out
        resume = _run_of(out) == run
        if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
            out = out.with_name(f"{out.name}-{run[:8]}")
        directory = run_directory(self.config, out, resume=resume, tensorboard=self.tensorboard)
        if not resume:
            mark_run(out, run)
        if self.storage is not None:
            directory.storage = Storage(self.storage.url, self.storage.name, run)
        return directory


def run_directory(
    config: RunConfig | ImitateConfig, out: Path, *, resume: bool, tensorboard: bool
) -> RunDirectory:
    """Begin a run's directory, or open it to go on; see `RunDirectory`."""
    if resume:
        return RunDirectory.resume(out, config, tensorboard=tensorboard)
    return RunDirectory.create(out, config, seed=config.seed, tensorboard=tensorboard)


_ID = ".run"


def mark_run(out: Path, run: str) -> None:
    """Note which run writes to a directory, so that a rank that takes over knows it again."""
    write_atomically(out / _ID, run.encode())


def _run_of(out: Path) -> str | None:
    try:
        return (out / _ID).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def train_rank(
    spec: RankSpec,
    job: TrainJob,
    feed: RemoteProgress | None = None,
    stopper: Stopper | None = None,
) -> int:
    """Train as one rank; return 0 or the signal that ended it.

    A ``feed`` receives what rank 0 would show here, a ``stopper`` the signals of another process.
    """
    # Find what does not fit before joining.
    config, stopper = job.config, stopper or Stopper(launched=True)
    kind, elastic = spec.device.partition(":")[0], "yes" if spec.elastic else "no"
    own = identity(config, processes=spec.size, device=kind, elastic=elastic)
    ranks = ProcessGroup(spec, own, job.run)
    if isinstance(config, ImitateConfig):
        data = StoredData(Path(config.data))
        state = imitation_run(config, data, spec.slot, spec.size, ranks)
    else:
        share = Share.of(config.num_envs, spec.slot, spec.size, config.env.agents)
        state = env_run(config, share, ranks, spec.device)
    if job.resume and (spec.slot == 0 or _run_of(job.out) == job.run):
        with job.directory(job.run) as run:
            state.load(run)

    # Only a rank that leads opens the directory: rank 0, and whichever takes over.
    def open_run(stack: ExitStack, kept: int) -> tuple[RunDirectory, Display]:
        run = stack.enter_context(job.directory(ranks.run))
        if job.resume or kept > 0:
            run.rewind(kept)
        shown = feed or Progress(state.total_steps, max_seconds=config.max_seconds)
        stack.enter_context(shown)
        return run, shown

    # Join and train.
    group = ElasticGroup(ranks, stopper)
    with ranks, stopper, Recorder(state, ranks, open_run, shared_only=True) as recorder:
        if isinstance(state.source, SequenceSource):
            state.source.interrupted = recorder.interruption(stopper, group.greatest)
        stopped = train(state, group, recorder, stopper)
    # The rank that saved prints the result.
    if recorder.policy_path:
        say = feed.say if feed is not None else sys.stdout.write
        say(state.summary() + "\n")
        if not stopped:
            say(f"policy: {recorder.policy_path}\n")
        sys.stdout.flush()
    return stopped
