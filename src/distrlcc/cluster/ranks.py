"""Decentralized training on Ray: each rank is an actor that trains as a local rank does.

Ray starts a rank that died again, wherever there is room; it joins at an update's end.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial

from distrlcc.cluster.member import DEATHS, Member, MemberGoneError, Trains, absolute_out, drive
from distrlcc.cluster.session import RayOptions
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.parallel.start import open_directory
from distrlcc.parallel.store import Master
from distrlcc.parallel.train_job import TrainJob, mark_run, train_rank
from distrlcc.runs.options import GroupOptions, RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import rehearse
from distrlcc.runs.source import Share

_AGAIN_SECONDS = 2.0
"""Time before all ranks are started again, s."""


class RayRank(Trains):
    """Trains in one thread and answers in others."""

    def train(self, place: RankSpec, job: TrainJob) -> int:
        """Train as this rank; return 0 or the signal that ended it.

        Raises:
            DistrlccError: See `train_rank`.
        """
        self.feed.take_warnings(f"rank {place.slot}: " if place.slot else "")
        # One that was started again goes on from a checkpoint, if it finds itself alone.
        job = replace(job, resume=job.resume or self.restarts > 0)
        return train_rank(place, job, self.feed, self.stopper)


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
    rehearse(config, Share.of(config.num_envs, 0, processes, config.env.agents).first)
    gpus = config.resources.learner_gpus > 0
    elastic = group.elastic and not gpus
    options, run_id = absolute_out(options, config), uuid.uuid4().hex
    directory = open_directory(config, options, run_id)
    with drive(
        config, options, on, "decentralized", learners=processes, directory=directory
    ) as run:
        assert run.directory is not None
        out, storage = run.directory.path, run.directory.storage
        mark_run(out, run_id)
        job = TrainJob(config, out, options.resume, options.tensorboard, run_id, storage)
        place = RankSpec(
            address=run.here,
            port=0,
            slot=0,
            size=processes,
            device="cuda:0" if gpus else "cpu",
            elastic=elastic,
            interface=group.interface,
            join_seconds=group.join_seconds,
            timeout_seconds=config.distributed.timeout_s,
        )
        # Elastic ranks beyond the plan join when there is room.
        count = max(processes, run.room.most_workers) if elastic else processes
        lives, attempt = DEATHS if elastic else 0, 0
        master = Master(run.here, 0)
        try:
            while not run.results:
                master.begin(attempt)
                for slot in range(count):
                    own = replace(place, port=master.port, slot=slot, attempt=attempt)
                    room = run.room.learner_options(slot)
                    rank = Member(f"rank {slot}", RayRank, room, (own, job), lives)
                    run.members.append(rank)
                try:
                    run.watch(processes, partial(master.update, attempt))
                except MemberGoneError as error:
                    if elastic or attempt >= group.restarts or run.stopper.signal:
                        raise
                    run.progress.note(f"{error}; starting all again from the last checkpoint")
                    run.kill()
                    time.sleep(_AGAIN_SECONDS)
                    attempt, job = attempt + 1, replace(job, resume=True)
        finally:
            run.kill()
            master.close()
    return run.end()
