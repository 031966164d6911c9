"""Runs a training on Ray, and watches it from the process that the user started."""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from distrlcc.errors import GroupError
from distrlcc.runtime.identity import check_identity, identity
from distrlcc.runtime.place import Place
from distrlcc.runtime.progress import Progress
from distrlcc.runtime.ray_member import MemberGoneError, RayMember
from distrlcc.runtime.ray_placement import Reservation, reserve
from distrlcc.runtime.ray_rank import RayRank
from distrlcc.runtime.ray_session import RayOptions, ray_session
from distrlcc.runtime.ray_trainer import TOPOLOGY, RayRun, RayTrainer
from distrlcc.runtime.run_config import RunConfig
from distrlcc.runtime.run_directory import fresh_folder
from distrlcc.runtime.start import GroupOptions, RunOptions, open_directory
from distrlcc.runtime.stopper import Stopper
from distrlcc.runtime.storage_session import go_on
from distrlcc.runtime.store import Master
from distrlcc.runtime.train_job import TrainJob, mark_run
from distrlcc.runtime.trainer import Share, Trainer

_TICK = 0.2
_BEGIN_SECONDS = 120.0
"""Time that a trainer's process has to begin, s: a machine's death is certain after some 20 s."""
_STOP_SECONDS = 30.0
"""Time to save and end after a user's signal, or when the others have ended."""
_AGAIN_SECONDS = 2.0


def train_actors_on_ray(
    config: RunConfig,
    options: RunOptions,
    on: RayOptions,
    *,
    restarts: int = 0,
    pace_seconds: float = 0.0,
) -> int:
    """Train with workers on a cluster, and start the trainer again where it dies.

    Without a storage the trainer is on this machine, where the run directory is; with one it is
    wherever there is room, and goes on on another machine should its own be gone.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    _check(config)
    options = replace(options, out=_absolute(options, config))
    resources = config.resources
    workers = resources.workers or len(config.actors.links)
    with ray_session(on) as ray, Stopper() as stopper:
        at = "" if options.storage else ray.util.get_node_ip_address()
        with reserve(resources, learners=1, workers=workers, at=at) as reservation:
            config = _for_workers(config, workers)
            job = RayRun(config, options, uuid.uuid4().hex, pace_seconds=pace_seconds)
            with Progress(config.total_steps, max_seconds=config.max_seconds) as progress:
                signal, said = _supervise(job, reservation, progress, stopper, restarts)
    return _ended(signal, said, options)


def _for_workers(config: RunConfig, workers: int) -> RunConfig:
    """Return the configuration with an update's segments counted for so many workers."""
    actors = config.actors
    if actors.segments_per_update or workers == len(actors.links):
        return config
    return replace(config, actors=replace(actors, segments_per_update=workers))


def _supervise(
    job: RayRun, reservation: Reservation, progress: Progress, stopper: Stopper, restarts: int
) -> tuple[int, list[str]]:
    """Have one trainer after the other, until one ends in good order.

    Returns:
        The signal that ended it, or 0, and what it said last.
    """
    while True:
        trainer = _begin(job, reservation, stopper)
        try:
            trainer.train(job, reservation)
            return _watch(trainer, progress, stopper), trainer.said
        except MemberGoneError as error:
            if stopper.signal or job.attempt >= restarts:
                again = "" if stopper.signal else "; --restarts K starts it again by itself"
                raise GroupError(
                    f"{error}; go on from its last checkpoint with: distrlcc train --engine ray "
                    f"{go_on(job.options.out or Path(), job.options.place(job.run))}{again}"
                ) from None
            progress.note(f"{error}; starting it again from its last checkpoint")
        finally:
            trainer.kill()
        job = replace(job, attempt=job.attempt + 1)


def _begin(job: RayRun, reservation: Reservation, stopper: Stopper) -> RayMember:
    """Have a trainer; where its place is on a machine that has just died, try again.

    Raises:
        GroupError: There is none in time, or it is of another version.
    """
    deadline = time.monotonic() + _BEGIN_SECONDS
    while True:
        trainer = RayMember("the trainer", RayTrainer, reservation.learner_options())
        try:
            left = max(deadline - time.monotonic(), 1.0)
            theirs = trainer.call("identity", job.config, seconds=left)
            check_identity(identity(job.config, topology=TOPOLOGY), theirs)
            return trainer
        except MemberGoneError as error:
            trainer.kill()
            if stopper.signal or time.monotonic() > deadline:
                raise GroupError(
                    f"no machine of the cluster starts the trainer within {_BEGIN_SECONDS:.0f} s: "
                    f"{error}"
                ) from None
            time.sleep(_AGAIN_SECONDS)
        except BaseException:
            trainer.kill()
            raise


def _watch(trainer: RayMember, progress: Progress, stopper: Stopper) -> int:
    """Wait for a trainer; return its signal."""
    asked = 0.0
    while True:
        result = trainer.poll(progress)
        if result is not None:
            return result
        if stopper.signal:
            asked = asked or time.monotonic()
            trainer.stop(stopper.signal)
            if time.monotonic() - asked > _STOP_SECONDS:
                raise MemberGoneError("the trainer did not end in time")
        time.sleep(_TICK)


@dataclass
class _Rank:
    place: Place
    member: RayMember
    again: float = 0.0
    """When to start it again; 0: it lives."""


def train_ranks_on_ray(
    config: RunConfig, options: RunOptions, group: GroupOptions, on: RayOptions, *, processes: int
) -> int:
    """Train decentralized with equal ranks on a cluster; the first is on this machine.

    Where the group is elastic, a rank that dies is started again, wherever there is room, and joins
    at an update's end; `ResourcesConfig.max_workers` lets more ranks in than planned. Otherwise all
    end with it, and start again from the last checkpoint as often as ``group.restarts`` says.

    Returns:
        0, or 128 + the number of the signal that ended the run.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    _check(config, processes)
    gpus = config.resources.learner_gpus > 0
    group = replace(group, elastic=group.elastic and not gpus)
    options, run = replace(options, out=_absolute(options, config)), uuid.uuid4().hex
    with ray_session(on) as ray, Stopper() as stopper:
        here = ray.util.get_node_ip_address()
        with (
            reserve(config.resources, learners=processes, workers=0, at=here) as reservation,
            open_directory(config, options, run) as directory,
            Progress(config.total_steps, max_seconds=config.max_seconds) as progress,
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
                join_seconds=group.join_seconds,
                timeout_seconds=config.distributed.timeout_s,
            )
            ranks = _Ranks(reservation, job, place, progress, stopper)
            signal = ranks.run(group.restarts)
    return _ended(signal, ranks.said, options)


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
        self.said: list[str] = []

    def run(self, restarts: int) -> int:
        """Train until the end; return the signal that ended the run, or 0."""
        master = Master(self._place.address, 0)
        try:
            attempt = 0
            while True:
                master.begin(attempt)
                self._place = replace(self._place, port=master.port, attempt=attempt)
                failure = self._attempt()
                if failure is None:
                    return self._stopper.signal or max(self._results, default=0)
                if self._place.elastic or attempt >= restarts or self._stopper.signal:
                    raise GroupError(f"{failure}; go on with --resume --out {self._job.out}")
                self._progress.note(f"{failure}; starting all again from the last checkpoint")
                attempt, self._job = attempt + 1, replace(self._job, resume=True)
        finally:
            for rank in self._ranks:
                rank.member.kill()
            master.close()

    def _attempt(self) -> str | None:
        """Start all ranks and watch them until they have ended; return why they failed, if so."""
        count = self._place.size
        if self._place.elastic:
            count = max(count, self._reservation.most_workers)
        self._ranks = [self._start(slot) for slot in range(count)]
        while True:
            for rank in list(self._ranks):
                failure = self._see(rank)
                if failure is not None and not self._place.elastic:
                    return failure
            self._begin_again()
            if self._results and not self._waiting():
                return None
            if self._stopper.signal:
                self._ended = self._ended or time.monotonic()
                for rank in self._ranks:
                    rank.member.stop(self._stopper.signal)
            if self._ended and time.monotonic() - self._ended > _STOP_SECONDS:
                return None
            time.sleep(_TICK)

    def _waiting(self) -> bool:
        """Say whether a rank that has begun goes on."""
        return any(not rank.again for rank in self._ranks[: self._place.size])

    def _see(self, rank: _Rank) -> str | None:
        """Look after a rank; return why it is gone, if it is."""
        if rank.again:
            return None
        try:
            result = rank.member.poll(self._progress)
        except MemberGoneError as error:
            return self._lose(rank, str(error))
        except GroupError as error:
            if error.exit_code != GroupError.exit_code:
                raise
            return self._lose(rank, f"{rank.member.name}: {error}")
        if result is not None:
            self._results.append(result)
            self.said += rank.member.said
            self._ranks.remove(rank)
            self._ended = self._ended or time.monotonic()
        return None

    def _lose(self, rank: _Rank, reason: str) -> str | None:
        rank.member.kill()
        if self._ended:
            self._ranks.remove(rank)
            return None
        rank.again = time.monotonic() + _AGAIN_SECONDS
        if self._place.elastic:
            self._progress.note(f"{reason}; starting it again")
        return reason

    def _begin_again(self) -> None:
        """Start ranks that are gone again; should nobody be left, they go on from a checkpoint."""
        for index, rank in enumerate(self._ranks):
            if rank.again and time.monotonic() > rank.again and not self._ended:
                self._job = replace(self._job, resume=True)
                self._ranks[index] = self._start(rank.place.slot)

    def _start(self, slot: int) -> _Rank:
        place = replace(self._place, slot=slot)
        options = self._reservation.learner_options(slot)
        member = RayMember(f"rank {slot}", RayRank, options)
        member.train(place, self._job)
        return _Rank(place, member)


def _check(config: RunConfig, processes: int = 1) -> None:
    """Find what does not fit before anything is written, and compile the simulator here."""
    share = Share.of(config.num_envs, 0, processes)
    Trainer(config, Share(share.first, 1)).collect()


def _absolute(options: RunOptions, config: RunConfig) -> Path:
    """Return the run directory as a path that means the same in another process."""
    return (options.out or fresh_folder(Path("runs"), config.recipe)).absolute()


def _ended(signal: int, said: list[str], options: RunOptions) -> int:
    sys.stdout.write("".join(said))
    sys.stdout.flush()
    if not signal:
        return 0
    sys.stderr.write(
        "distrlcc: stopped; saved. Go on with: distrlcc train --engine ray "
        f"{go_on(options.out or Path(), options.place(''))}\n"
    )
    return 128 + signal
