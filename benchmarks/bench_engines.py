"""Measure the engines of actor-learner runs beside each other: threads, channel, torch RPC and Ray.

python -m benchmarks engines --json -

An object on each worker answers without an environment, so that only the engine is measured.

Flags:
    --engines NAME,… =in-process,channel,torch-rpc,ray  which
    --workers N {1..256} =4  of each
    --seconds N {0.1..600} =5.0  time for calls, and for segments, s
    --recipe N =distrlcc  whose segments and weights
    $JSON
"""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.launched import measured
from distrlcc.actors.actor import Report, Segment
from distrlcc.actors.admission import admit, join
from distrlcc.actors.channel import ChannelEngine, hold_object, longest_frame
from distrlcc.actors.engine import Engine, Worker
from distrlcc.actors.torch_rpc import TorchRpcEngine, hold_actor
from distrlcc.cli.output import emit_json
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import GroupError, unknown_name
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.limits import limits
from distrlcc.parallel.launcher import Launcher
from distrlcc.policy.spec import expected_shapes
from distrlcc.processes import switch_threads_often
from distrlcc.recipes.registry import recipe
from distrlcc.runs.identity import identity
from distrlcc.runs.options import RankSpec
from distrlcc.runs.run_config import CHANNEL, TORCH_RPC, RunConfig
from distrlcc.runs.source import new_rollout, policy_spec
from tests.support.thread_engine import InProcessEngine

_BROADCASTS = 100


@dataclass(frozen=True)
class EngineJob:
    """What is measured."""

    config: RunConfig
    """Says how large segments and weights are."""
    workers: int
    seconds: float
    """How long to call, and again for segments, s."""
    began: float = 0.0
    """`time.monotonic` when the engine's start began."""


Figures = dict[str, float]


class Echo:
    """Answers with a segment of the run's shape, and takes weights."""

    def __init__(self, config: RunConfig, index: int = 0, first_step: int = 0) -> None:
        """Make one segment."""
        spec = policy_spec(config, LinkVectorEnv(config.env.unit, config.env))
        rollout = new_rollout(config, spec, config.actors.envs_per_worker)
        self._segment = Segment(index, first_step, rollout, CollectStats())
        self.stopped = False

    def report(self, most: int, seconds: float) -> Report:
        """Return the segment, if any is asked for."""
        return Report("", [self._segment] * most)

    def set_weights(self, weights: Weights) -> int:
        """Take weights; return their version."""
        return weights.version

    def stop(self) -> int:
        """Let the worker end."""
        self.stopped = True
        return 0


def measure_in_process(job: EngineJob) -> Figures:
    """Measure the engine of threads: beside it the cost of the others' messages shows."""
    job = replace(job, began=monotonic())
    return _measure(InProcessEngine(job.workers), job)


def measure_processes(job: EngineJob) -> Figures:
    """Measure the channel, or torch RPC, between processes of this machine."""
    job = replace(job, began=monotonic())
    size = 1 + job.workers
    places = [RankSpec("127.0.0.1", 0, slot, size, learners=1) for slot in range(size)]
    launcher = Launcher(measured_rank, job, places)
    figures: Figures = measured(launcher)[0]
    return figures


def measured_rank(place: RankSpec, job: EngineJob) -> Figures | None:
    """Measure in one process (slot 0), and hold the workers' objects in the others."""
    switch_threads_often()
    own, most = identity(job.config, topology="bench engines"), longest_frame(job.config)
    over_rpc = job.config.actors.engine == TORCH_RPC
    if place.slot > 0:
        admission = join(place, own)
        if over_rpc:
            hold_actor(place, admission)
        else:
            hold_object(place, admission, partial(Echo, job.config), most)
        return None
    admission = admit(place, own)
    if over_rpc:
        return _measure(TorchRpcEngine(place, admission), job)
    return _measure(ChannelEngine(place, admission, most), job)


def measure_ray(job: EngineJob) -> Figures:
    """Measure Ray on this machine, its own start included."""
    from distrlcc.cluster.engine import RayEngine
    from distrlcc.cluster.placement import reserve
    from distrlcc.cluster.session import ray_session

    job = replace(job, began=monotonic())
    with (
        ray_session(),
        reserve(job.config.resources, learners=1, workers=job.workers) as room,
    ):
        own = identity(job.config, topology="actor-learner")
        return _measure(RayEngine(room, job.config, own), job)


ENGINES = {
    "in-process": measure_in_process,
    CHANNEL: measure_processes,
    TORCH_RPC: measure_processes,
    "ray": measure_ray,
}


def run(args: Namespace) -> int:
    """Measure and print; the ratios are to in-process."""
    names = args.engines.split(",")
    for name in names:
        if name not in ENGINES:
            raise unknown_name("engine", name, ENGINES)
    job = EngineJob(recipe(args.recipe), args.workers, args.seconds)
    rows = {}
    for name in names:
        actors = job.config.actors
        if name in (CHANNEL, TORCH_RPC):
            actors = replace(actors, engine=name)
        found = ENGINES[name](replace(job, config=replace(job.config, actors=actors)))
        rows[name] = found | {"workers": args.workers}
        if args.json == "-":
            continue
        base = rows.get("in-process")
        share = f" ({found['calls_per_second'] / base['calls_per_second']:.1%})" if base else ""
        print(
            f"{name:<10} started in {found['start_seconds']:.1f} s; "
            f"{found['calls_per_second']:,.0f} calls/s{share}; "
            f"{found['segments_per_second']:,.0f} segments/s "
            f"({found['megabytes_per_second']:,.0f} MB/s); weights everywhere "
            f"in {found['broadcast_ms_median']:.1f} ms (p99 {found['broadcast_ms_p99']:.1f})"
        )
    emit_json(args.json, {"engines": rows})
    return 0


def _measure(engine: Engine, job: EngineJob) -> Figures:
    """Measure an engine that was just made, and close it."""
    try:
        # Start an object on each worker.
        present: list[Worker] = []
        deadline = monotonic() + limits().start
        while len(present) < job.workers:
            present += engine.changes().joined
            if monotonic() > deadline:
                raise GroupError(f"{len(present)} of {job.workers} workers came in time")
            sleep(0.01)
        for future in [
            engine.start(worker, Echo, job.config, worker.index, 0) for worker in present
        ]:
            future.result(limits().start)
        started = monotonic() - job.began
        # Call it, collect segments, and broadcast weights.
        calls, _ = _call_all(engine, present, 0, job.seconds)
        segments, size = _call_all(engine, present, 1, job.seconds)
        spec = policy_spec(job.config, LinkVectorEnv(job.config.env.unit, job.config.env))
        arrays = {name: np.zeros(of, np.float32) for name, of in expected_shapes(spec).items()}
        times = []
        for version in range(_BROADCASTS):
            begin, weights = perf_counter(), Weights(version, arrays)
            for future in [engine.call(worker, "set_weights", weights) for worker in present]:
                future.result(limits().join)
            times.append(1e3 * (perf_counter() - begin))
        for future in [engine.call(worker, "stop") for worker in present]:
            future.result(limits().join)
    finally:
        engine.close()
    return {
        # From nothing until all workers hold their objects.
        "start_seconds": started,
        # Answers of all workers, one call under way to each.
        "calls_per_second": calls,
        "segments_per_second": segments,
        "megabytes_per_second": segments * size / 1e6,
        # Time until all workers have confirmed new weights.
        "broadcast_ms_median": float(np.median(times)),
        "broadcast_ms_p99": float(np.percentile(times, 99)),
    }


def _call_all(
    engine: Engine, workers: list[Worker], most: int, seconds: float
) -> tuple[float, float]:
    """Keep one report under way from each worker; return reports per second and bytes in each."""

    def call(worker: Worker) -> Future[Any]:
        return engine.call(worker, "report", most, 0.0)

    under_way: dict[Future[Any], Worker] = {call(worker): worker for worker in workers}
    begin, answers, size = perf_counter(), 0, 0.0
    while perf_counter() - begin < seconds:
        done, _ = wait(under_way, limits().join, "FIRST_COMPLETED")
        for future in done:
            for segment in future.result().segments:
                size = float(sum(a.nbytes for a in segment.rollout.arrays().values()))
            worker = under_way.pop(future)
            under_way[call(worker)] = worker
            answers += 1
    took = perf_counter() - begin
    wait(under_way, limits().join)
    return answers / took, size
