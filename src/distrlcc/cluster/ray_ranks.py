"""Runs a decentralized training on Ray, and starts ranks that die again."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace

from distrlcc.cluster.ray_member import MemberGoneError, RayMember
from distrlcc.cluster.ray_placement import Reservation, reserve
from distrlcc.cluster.ray_rank import RayRank
from distrlcc.cluster.ray_run import (
    AGAIN_SECONDS,
    TICK,
    absolute_out,
    check_fit,
    command_again,
    end_run,
    stop_seconds,
)
from distrlcc.cluster.session import RayOptions, ray_session
from distrlcc.errors import GroupError
from distrlcc.parallel.place import Place
from distrlcc.parallel.start import open_directory
from distrlcc.parallel.store import Master
from distrlcc.parallel.train_job import TrainJob, mark_run
from distrlcc.runs.options import GroupOptions, RunOptions
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.stopper import Stopper

_LOSSES = 5
"""Deaths of a rank, one after the other without an update between, that end the run."""


@dataclass
class _Rank:
    place: Place
    member: RayMember
    again: float = 0.0
    """When to start it again; 0: it lives."""
    losses: int = 0
    """Deaths since the run's last update."""


def train_ranks_on_ray(
    config: RunConfig, options: RunOptions, group: GroupOptions, on: RayOptions, *, processes: int
) -> int:
    """Train decentralized with equal ranks on a cluster; the first is on this machine.

    Where the group is elastic, a rank that dies is started again, wherever there is room, as often
    as it takes while the run gets on, and joins at an update's end; `ResourcesConfig.max_workers`
    lets more in than planned. Otherwise all end with it, and start again from the last checkpoint
    as often as ``group.restarts`` says.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    check_fit(config, processes)
    gpus = config.resources.learner_gpus > 0
    group = replace(group, elastic=group.elastic and not gpus)
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
            place = Place(
                address=here,
                port=0,
                slot=0,
                size=processes,
                device="cuda:0" if gpus else "cpu",
                elastic=group.elastic,
                interface=group.interface,
                join_seconds=group.join_seconds,
                timeout_seconds=config.distributed.timeout_s,
            )
            ranks = _Ranks(reservation, job, place, progress, stopper)
            signal = ranks.run(group.restarts, again)
    return end_run(signal, ranks.said, again)


class _Ranks:
    """All ranks of a run."""

    def __init__(
        self,
        reservation: Reservation,
        job: TrainJob,
        place: Place,
        progress: Progress,
        stopper: Stopper,
    ) -> None:
        self._reservation, self._job, self._place = reservation, job, place
        self._progress, self._stopper = progress, stopper
        self._ranks: list[_Rank] = []
        self._ended = 0.0  # when the first rank had done, or the user's signal came
        self._results: list[int] = []
        self._seen: dict[int, int] = {}  # the run's updates when a rank of this slot died last
        self._master: Master
        self.said: list[str] = []

    def run(self, restarts: int, again: str) -> int:
        """Train until the end; return the signal that ended the run, or 0.

        Raises:
            GroupError: It failed; ``again`` is the command that goes on.
        """
        self._master = Master(self._place.address, 0)
        try:
            attempt = 0
            while True:
                self._master.begin(attempt)
                self._place = replace(self._place, port=self._master.port, attempt=attempt)
                failure = self._attempt()
                if failure is None:
                    return self._stopper.signal or max(self._results, default=0)
                if self._place.elastic or attempt >= restarts or self._stopper.signal:
                    raise GroupError(f"{failure}; go on from its last checkpoint with: {again}")
                self._progress.note(f"{failure}; starting all again from the last checkpoint")
                self._kill()
                time.sleep(AGAIN_SECONDS)
                attempt, self._job = attempt + 1, replace(self._job, resume=True)
        finally:
            self._kill()
            self._master.close()

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.member.kill()

    def _attempt(self) -> str | None:
        """Start all ranks and watch them until they have ended; return why they failed, if so."""
        count = self._place.size
        if self._place.elastic:
            count = max(count, self._reservation.most_workers)
        self._ranks = [self._start(slot) for slot in range(count)]
        while True:
            for rank in list(self._ranks):
                failure = self._see(rank)
                if failure is not None:
                    return failure
            if self._results and not self._going_on():
                return None
            if self._stopper.signal:
                self._ended = self._ended or time.monotonic()
                for rank in self._ranks:
                    rank.member.stop(self._stopper.signal)
            late = self._ended and time.monotonic() - self._ended > stop_seconds(
                stored=self._job.storage is not None
            )
            if late or (self._ended and not self._going_on()):
                return None if self._results else "no rank ended in good order"
            self._begin_again()
            time.sleep(TICK)

    def _going_on(self) -> bool:
        """Say whether a planned rank lives."""
        return any(not rank.again and rank.place.slot < self._place.size for rank in self._ranks)

    def _see(self, rank: _Rank) -> str | None:
        """Look after a rank; return why the run fails, if it does."""
        if rank.again:
            return None
        try:
            result = rank.member.poll(self._progress)
        except MemberGoneError as error:
            return self._lose(rank, str(error))
        except GroupError as error:
            if error.exit_code == GroupError.exit_code:
                return self._lose(rank, f"{rank.member.name}: {error}")
            if error.exit_code == 2 and self._updates() >= 0:  # it alone does not fit
                self._progress.note(f"left out: {rank.member.name}: {error}")
                self._remove(rank)
                return None
            raise
        if result is not None:
            self._results.append(result)
            self.said += rank.member.said
            self._remove(rank)
            self._ended = self._ended or time.monotonic()
        return None

    def _remove(self, rank: _Rank) -> None:
        rank.member.kill()
        self._ranks.remove(rank)

    def _updates(self) -> int:
        return self._master.update(self._place.attempt)

    def _lose(self, rank: _Rank, reason: str) -> str | None:
        """Take a rank for gone; return why the run fails, if it does."""
        if self._ended:
            self._remove(rank)
            return None
        rank.member.kill()
        if not self._place.elastic:
            return reason
        updates = self._updates()
        rank.losses, self._seen[rank.place.slot] = (
            rank.losses + 1 if updates == self._seen.get(rank.place.slot) else 1,
            updates,
        )
        if rank.losses > _LOSSES:
            return f"{reason}, {rank.losses} times without an update"
        rank.again = time.monotonic() + AGAIN_SECONDS * rank.losses
        self._progress.note(f"{reason}; starting it again")
        return None

    def _begin_again(self) -> None:
        """Start ranks that are gone again; should nobody be left, they go on from a checkpoint."""
        for index, rank in enumerate(self._ranks):
            if rank.again and time.monotonic() > rank.again and not self._ended:
                self._job = replace(self._job, resume=True)
                self._ranks[index] = replace(self._start(rank.place.slot), losses=rank.losses)

    def _start(self, slot: int) -> _Rank:
        place = replace(self._place, slot=slot)
        options = self._reservation.learner_options(slot)
        member = RayMember(f"rank {slot}", RayRank, options)
        member.train(place, self._job)
        return _Rank(place, member)
