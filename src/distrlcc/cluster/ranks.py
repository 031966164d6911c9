"""Decentralized training on Ray: each rank is an actor that trains as a local rank does.

Ray starts a rank that died again, wherever there is room; it joins at an update's end.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial

<<<<<<< HEAD
from distrlcc.cluster.member import (
    TICK,
    Member,
    MemberGoneError,
    Trains,
    absolute_out,
    command_again,
    end_run,
    stop_seconds,
)
from distrlcc.cluster.placement import Reservation, reserve
from distrlcc.cluster.session import RayOptions, ray_session
from distrlcc.errors import GroupError
from distrlcc.parallel.rank_spec import RankSpec
=======
from distrlcc.cluster.member import DEATHS, Member, MemberGoneError, Trains, absolute_out, drive
from distrlcc.cluster.session import RayOptions
from distrlcc.parallel.place import Place
>>>>>>> clu2
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
<<<<<<< HEAD
    options, run = replace(options, out=absolute_out(options, config)), uuid.uuid4().hex
    again = command_again("decentralized", options, on)
    with ray_session(on) as ray:
        here = ray.util.get_node_ip_address()
        with (
            reserve(config.resources, learners=processes, workers=0, at=here) as reservation,
            open_directory(config, options, run) as directory,
            Progress(config.total_steps, max_seconds=config.max_seconds) as progress,
            Stopper() as stopper,  # until here a signal ends us at once
        ):
            directory.lock()
            mark_run(directory.path, run)
            job = TrainJob(
                config, directory.path, options.resume, options.tensorboard, run, directory.storage
            )
            place = RankSpec(
                address=here,
                port=0,
                slot=0,
                size=processes,
                device="cuda:0" if gpus else "cpu",
                elastic=group.elastic and not gpus,
                interface=group.interface,
                join_seconds=group.join_seconds,
                timeout_seconds=config.distributed.timeout_s,
            )
            ranks = _Ranks(reservation, progress, stopper)
            try:
                signal = ranks.run(place, job, group.restarts)
            except MemberGoneError as error:
                raise GroupError(f"{error}; go on from its last checkpoint with: {again}") from None
    return end_run(signal, ranks.said, again)


@dataclass
class _Rank:
    slot: int
    member: Member
    updates: int = -1
    """Of the run when this rank died last."""
    deaths: int = 0
    """Of this rank until the run's last update."""


class _Ranks:
    """All ranks of a run."""

    def __init__(self, reservation: Reservation, progress: Progress, stopper: Stopper) -> None:
        self._reservation, self._progress, self._stopper = reservation, progress, stopper
        self._ranks: list[_Rank] = []
        self._results: list[int] = []
        self.said: list[str] = []

    def run(self, place: RankSpec, job: TrainJob, restarts: int) -> int:
        """Train until the end; return the signal that ended the run, or 0.

        Raises:
            MemberGoneError: It failed.
            DistrlccError: What a rank raised.
        """
        master, attempt = Master(place.address, 0), 0
=======
    elastic = group.elastic and not gpus
    options, run_id = absolute_out(options, config), uuid.uuid4().hex
    directory = open_directory(config, options, run_id)
    with drive(
        config, options, on, "decentralized", learners=processes, directory=directory
    ) as run:
        assert run.directory is not None
        run.directory.lock()
        out, storage = run.directory.path, run.directory.storage
        mark_run(out, run_id)
        job = TrainJob(config, out, options.resume, options.tensorboard, run_id, storage)
        place = Place(
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
>>>>>>> clu2
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
<<<<<<< HEAD

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.member.kill()

    def _attempt(self, place: RankSpec, job: TrainJob, master: Master) -> None:
        """Start all ranks and watch them until they have ended.

        Raises:
            MemberGoneError: They failed.
        """
        # Elastic ranks beyond the plan come when there is room.
        count = max(place.size, self._reservation.most_workers) if place.elastic else place.size
        self._ranks = [
            _Rank(
                slot,
                Member(
                    f"rank {slot}",
                    RayRank,
                    self._reservation.learner_options(slot),
                    (replace(place, slot=slot), job),
                    restarts=-1 if place.elastic else 0,
                ),
            )
            for slot in range(count)
        ]
        ended = 0.0
        while any(rank.slot < place.size for rank in self._ranks):
            # Show their news, and see which have ended.
            for rank in list(self._ranks):
                self._see(rank, place, master.update(place.attempt), ended=bool(ended))
            # A user's signal, and the end of one, are everyone's.
            if self._stopper.signal:
                for rank in self._ranks:
                    rank.member.stop(self._stopper.signal)
            if self._results or self._stopper.signal:
                ended = ended or time.monotonic()
            if ended and time.monotonic() - ended > stop_seconds(stored=job.storage is not None):
                break
            time.sleep(TICK)
        if not self._results:
            raise MemberGoneError("no rank ended in good order")

    def _see(self, rank: _Rank, place: RankSpec, updates: int, *, ended: bool) -> None:
        """Look after a rank.

        Raises:
            MemberGoneError: The run fails with it.
            DistrlccError: What it raised, if that ends the run.
        """
        member, deaths = rank.member, rank.member.deaths
        try:
            result = member.poll(self._progress)
        except MemberGoneError:
            if not ended:
                raise
            self._remove(rank)
            return
        except GroupError as error:
            if ended:
                self._remove(rank)
                return
            if error.exit_code == 2 and updates >= 0:  # it alone does not fit
                self._progress.note(f"left out: {member.name}: {error}")
                self._remove(rank)
                return
            if error.exit_code != GroupError.exit_code:
                raise
            if not place.elastic:
                raise MemberGoneError(f"{member.name}: {error}") from None
            self._progress.note(f"{member.name}: {error}; starting it again")
            member.deaths += 1
            member.begin_again()
            result = None
        if result is not None:
            self._results.append(result)
            self.said += member.said
            self._remove(rank)
        elif member.deaths > deaths:
            if ended:
                self._remove(rank)
                return
            # A rank that dies again and again without an update between ends the run.
            rank.deaths = rank.deaths + 1 if updates == rank.updates else 1
            rank.updates = updates
            if rank.deaths > _DEATHS:
                raise MemberGoneError(
                    f"{member.name} died {rank.deaths} times without an update between"
                )

    def _remove(self, rank: _Rank) -> None:
        rank.member.kill()
        self._ranks.remove(rank)
=======
    return run.end()
>>>>>>> clu2
