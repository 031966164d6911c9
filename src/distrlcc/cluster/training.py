"""Both topologies on Ray: equal ranks, or one trainer that starts the workers.

Ranks join at an update's end. Without a storage, the first rank or the trainer is on the machine of
the command and the run directory; with one, a trainer and its successors are anywhere.
"""

import secrets
import time
import uuid
from dataclasses import replace
from functools import partial

from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.start import actor_state, check_learners, train_on_engine
from distrlcc.cluster.engine import TOPOLOGY, RayEngine
from distrlcc.cluster.member import DEATHS, MemberGoneError, Trains, drive
from distrlcc.cluster.placement import Reservation
from distrlcc.errors import OutputError
from distrlcc.limits import limits
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.parallel.start import TrainJob, behind_tunnel, rank_spec, train_rank
from distrlcc.parallel.store import Master
from distrlcc.processes import let_threads_preempt, switch_threads_often
from distrlcc.runs.identity import check_identity, identity
from distrlcc.runs.options import GroupOptions, RankSpec, RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.start import open_directory
from distrlcc.runs.storage_session import restore
from distrlcc.storage import say


class RayRank(Trains):
    """One rank of a decentralized run, or one of several learners."""

    def train(
        self, spec: RankSpec, job: TrainJob, token: str, room: Reservation, own: dict[str, str]
    ) -> int:
        """Train as this rank; return 0 or the signal that ended it. The run has its own token.

        Learners have workers in a ``room``, which must share ``own``.
        """
        name = "learner" if spec.learners else "rank"
        self.feed.take_warnings(f"{name} {spec.slot}: " if spec.slot else "")
        # One that was started again goes on from a checkpoint, if it finds itself alone.
        job = replace(job, resume=job.resume or self.restarts > 0)
        with behind_tunnel(spec, token) as behind:
            if not spec.learners:
                return train_rank(behind, job, self.feed, self.stopper)
            switch_threads_often()
            ranks = ProcessGroup(behind, own, job.run)
            return train_on_engine(
                job,
                actor_state(job, spec.device, ranks),
                lambda: RayEngine(room, job.config, own, spec.slot),
                ranks=ranks,
                feed=self.feed,
                stopper=self.stopper,
                patience=2.0 * limits().start,
            )


def train_ranks_on_ray(
    config: RunConfig,
    options: RunOptions,
    group: GroupOptions,
    on: str,
    *,
    processes: int,
    workers: int = 0,
) -> int:
    """Train with equal ranks on a cluster, or learners with workers; the first is on this machine.

    In an elastic group Ray restarts a rank that died while the run makes progress, and lets up to
    `ResourcesConfig.max_workers` in. Otherwise all end, and start again up to ``group.restarts``
    times. Returns 0, or 128 + the signal that ended the run; raises what `drive` does.
    """
    # Find what does not fit before anything is written; then reserve room and begin the directory.
    rehearse(config, 0 if workers else Share.of(config, 0, processes).first)
    gpus, topology = config.resources.learner_gpus > 0, TOPOLOGY if workers else "decentralized"
    elastic, run_id = group.elastic and not gpus, uuid.uuid4().hex
    with drive(
        config, options, on, topology, learners=processes, workers=workers, run=run_id
    ) as run:
        assert run.directory is not None
        out, storage = run.directory.path, run.directory.storage
        job = TrainJob(config, out, options.resume, options.tensorboard, run_id, storage)
        # Plan the ranks; elastic ones beyond the plan join when there is room.
        count = len(run.room.learners) if elastic and not workers else processes
        lives, attempt = DEATHS if elastic else 0, 0
        token = secrets.token_hex(32)
        master = Master(run.here, 0, token=token)
        own = replace(group, elastic=elastic, gpu=0 if gpus else -1)
        place = RankSpec(run.here, master.port, 0, processes, learners=processes * bool(workers))
        spec = rank_spec(place, config, own)
        same = identity(config, topology=TOPOLOGY)
        try:
            # Start all, and again where the run does not heal by itself.
            while not run.results:
                master.begin(attempt)
                for slot in range(count):
                    place = replace(spec, slot=slot, attempt=attempt)
                    name = f"{'learner' if workers else 'rank'} {slot}"
                    run.start(name, RayRank, slot, (place, job, token, run.room, same), lives)
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


class RayTrainer(Trains):
    """The trainer of an actor-learner run."""

    def train(
        self,
        config: RunConfig,
        options: RunOptions,
        run_id: str,
        own: dict[str, str],
        room: Reservation,
    ) -> int:
        """Train until the end; ConfigError: this machine does not share the identity ``own``.

        All trainers of a run, one after the other, have one ``run_id``.
        """
        check_identity(own, identity(config, topology=TOPOLOGY))
        switch_threads_often()
        self.feed.take_warnings()
        # One that Ray has started again goes on from the last checkpoint, if there is any.
        storage = options.place(run_id)
        if self.restarts and not options.resume and options.out is not None:
            begun = (options.out / "config.toml").exists()
            begun = begun or (storage is not None and storage.holds_run())
            options = replace(options, resume=begun)
        # A trainer that was given up may live on, cut off: its successor takes the name over.
        run = f"{run_id}#{self.restarts}"
        with open_directory(config, options, run) as directory:
            out, storage = directory.path, directory.storage
            job = TrainJob(config, out, options.resume, options.tensorboard, run, storage)
            state = actor_state(job, "cuda:0" if config.resources.learner_gpus else "cpu")
            if update := state.counters.update:
                self.feed.note(f"going on after update {update}")
            elif job.resume or self.restarts:
                self.feed.note("no checkpoint yet: from the start")
            let_threads_preempt(True)
            return train_on_engine(
                job,
                state,
                lambda: RayEngine(room, config, own),
                feed=self.feed,
                stopper=self.stopper,
                patience=2.0 * limits().start,  # their processes are still to be made
            )


def train_actors_on_ray(
    config: RunConfig, options: RunOptions, on: str, *, restarts: int = 0
) -> int:
    """Train with workers, a trainer started again ``restarts`` times; see `train_ranks_on_ray`."""
    workers, learners = config.resources.workers or len(config.actors.links), config.actors.learners
    check_learners(learners, workers)
    # An update's segments are counted for the workers that there are.
    if not config.actors.segments_per_update and workers != len(config.actors.links):
        each = config.distributed.batch == "per-process"
        count = -(-workers // learners) if each else workers
        config = replace(config, actors=replace(config.actors, segments_per_update=count))
    ActorSource(config)
    if learners > 1:
        group = GroupOptions(restarts=restarts)
        return train_ranks_on_ray(config, options, group, on, processes=learners, workers=workers)
    rehearse(config)
    with drive(config, options, on, TOPOLOGY, learners=1, workers=workers) as run:
        own = identity(config, topology=TOPOLOGY)
        options = replace(run.options, watch=RunOptions.watch)  # this process's alone
        job = config, options, uuid.uuid4().hex, own, run.room
        run.start("the trainer", RayTrainer, 0, job, restarts)
        run.watch()
    # Fetch a run that was trained on another machine.
    out, storage = run.options.out, run.options.place("")
    if storage is not None and out is not None:
        try:
            if not out.exists() or storage.elsewhere(out):
                restore(storage, out)
        except OutputError as error:
            if not out.exists():
                raise
            say(f"not fetched: {error}")
    return run.end()
