"""What each process of an imitation run does."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.data.reader import StoredData
from distrlcc.parallel.data_parallel_group import DataParallelGroup
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.place import Place
from distrlcc.parallel.process_group import PeerLostError
from distrlcc.runs.identity import identity
from distrlcc.runs.imitate import imitate_rank
from distrlcc.runs.imitate_config import EXTENDABLE, ImitateConfig
from distrlcc.runs.imitation_trainer import ImitationCounters
from distrlcc.runs.run_directory import RunDirectory


@dataclass(frozen=True)
class ImitateJob:
    """A run, as its processes are told of it."""

    config: ImitateConfig
    out: Path
    """Its directory, which is there."""
    resume: bool
    tensorboard: bool


def imitate_together(job: ImitateJob, processes: int) -> ImitationCounters:
    """Imitate on several processes of this machine; return what rank 0 counted.

    Raises:
        DistrlccError: See `imitate_rank`; or a process is gone.
    """
    places = [Place("127.0.0.1", 0, slot, processes, elastic=False) for slot in range(processes)]
    outcome = Launcher(imitate_process, job, places, hosts=True).run()
    counters: ImitationCounters = outcome.results.get(0) or ImitationCounters()
    if outcome.code and not counters.signal:
        counters.signal = outcome.code - 128
    return counters


def imitate_process(place: Place, job: ImitateJob) -> ImitationCounters:
    """Imitate as one of the processes.

    Raises:
        DistrlccError: See `imitate_rank`; or another process is gone.
    """
    config = job.config
    data = StoredData(Path(config.data))
    group = DataParallelGroup(place, identity(config))
    with ExitStack() as stack:
        stack.enter_context(group)
        group.wait()
        run = None
        if group.leads:
            run = stack.enter_context(
                RunDirectory.resume(
                    job.out, config, tensorboard=job.tensorboard, extendable=EXTENDABLE
                )
            )
        try:
            return imitate_rank(config, data, group, run, resume=job.resume, launched=True)
        except (PeerLostError, RuntimeError) as error:
            raise group.explain(error) from error
