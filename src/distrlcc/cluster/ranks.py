"""Decentralized training on Ray: each rank is an actor that trains as a local rank does.

Ray starts a rank that died again, wherever there is room; it joins at an update's end.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial

from distrlcc.cluster.member import DEATHS, MemberGoneError, Trains, drive
from distrlcc.cluster.session import RayOptions
from distrlcc.limits import limits
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.parallel.start import TrainJob, train_rank
from distrlcc.parallel.store import Master
from distrlcc.runs.options import GroupOptions, RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import rehearse
from distrlcc.runs.source import Share


class RayRank(Trains):
    """One rank of a decentralized run."""

    def train(self, spec: RankSpec, job: TrainJob) -> int:
        """Train as this rank; return 0 or the signal that ended it.

        Raises:
            DistrlccError: See `train_rank`.
        """
        self.feed.take_warnings(f"rank {spec.slot}: " if spec.slot else "")
        # One that was started again goes on from a checkpoint, if it finds itself alone.
        job = replace(job, resume=job.resume or self.restarts > 0)
        return train_rank(spec, job, self.feed, self.stopper)


def train_ranks_on_ray(
    config: RunConfig, options: RunOptions, group: GroupOptions, on: RayOptions, *, processes: int
) -> int:
    """Train decentralized with equal ranks on a cluster; the first is on this machine.

    Where the group is elastic, Ray starts a rank that died again as often as it takes while the
    run makes progress; `ResourcesConfig.max_workers` lets more in than planned. Otherwise all end
    with it, and start again from the last checkpoint as often as ``group.restarts`` says.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    # Find what does not fit before anything is written; then reserve room and begin the directory.
    rehearse(config, Share.of(config.num_envs, 0, processes, config.env.agents).first)
    gpus = config.resources.learner_gpus > 0
    elastic, run_id = group.elastic and not gpus, uuid.uuid4().hex
    with drive(config, options, on, "decentralized", learners=processes, run=run_id) as run:
        assert run.directory is not None
        out, storage = run.directory.path, run.directory.storage
        job = TrainJob(config, out, options.resume, options.tensorboard, run_id, storage)
        # Plan the ranks; elastic ones beyond the plan join when there is room.
        count = len(run.room.learners) if elastic else processes
        lives, attempt = DEATHS if elastic else 0, 0
        master = Master(run.here, 0)
        spec = RankSpec(
            address=run.here,
            port=master.port,
            slot=0,
            size=processes,
            device="cuda:0" if gpus else "cpu",
            elastic=elastic,
            interface=group.interface,
            join_seconds=group.join_seconds,
            timeout_seconds=config.distributed.timeout_s,
        )
        try:
            # Start all, and again where the run does not heal by itself.
            while not run.results:
                master.begin(attempt)
                for slot in range(count):
                    own = replace(spec, slot=slot, attempt=attempt)
                    run.start(f"rank {slot}", RayRank, slot, (own, job), lives)
                try:
                    run.watch(processes, partial(master.update, attempt))
                except MemberGoneError as error:
                    if elastic or attempt >= group.restarts or run.stopper.signal:
                        raise
                    run.progress.note(f"{error}; starting all again from the last checkpoint")
                    run.kill()
                    time.sleep(limits().retry)
                    attempt, job = attempt + 1, replace(job, resume=True)
        finally:
            run.kill()
            master.close()
    return run.end()
