"""What engines carry, without what actors do: for measuring engines."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass, fields
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from distrlcc.actors.engine import Engine, Worker
from distrlcc.actors.segment import Segment
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import GroupError
from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.policy.spec import expected_shapes
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.source import new_rollout, policy_spec

_START_SECONDS = 120.0
_CALL_SECONDS = 30.0
_BROADCASTS = 100


@dataclass(frozen=True)
class EngineFigures:
    """What was measured of an engine."""

    start_seconds: float
    """From nothing until all workers hold their objects, s."""
    calls_per_second: float
    """Answers of all workers to empty calls, one under way to each."""
    segments_per_second: float
    """Segments that came from all workers."""
    megabytes_per_second: float
    """Their size."""
    broadcast_ms_median: float
    """Time until all workers have confirmed new weights, ms."""
    broadcast_ms_p99: float


class Echo:
    """Answers with a segment of the run's shape, and takes weights."""

    def __init__(self, config: RunConfig) -> None:
        """Make one segment."""
        spec = policy_spec(config, LinkVectorEnv(config.env.agents, config.env))
        envs = config.actors.envs_per_worker
        rollout = new_rollout(config, spec, envs)
        self._segment = Segment(0, 0, np.zeros(envs, np.int64), rollout, CollectStats())
        self.stopped = False

    def nothing(self) -> None:
        """Answer."""

    def segment(self) -> Segment:
        """Return the segment."""
        return self._segment

    def set_weights(self, weights: Weights) -> int:
        """Take weights; return their version."""
        return weights.version

    def stop(self) -> int:
        """Let the worker end."""
        self.stopped = True
        return 0


def measure_engine(
    engine: Engine, config: RunConfig, workers: int, seconds: float, began: float
) -> EngineFigures:
    """Measure an engine, and close it.

    Args:
        engine: Just made.
        config: Says how large segments and weights are.
        workers: That it will have.
        seconds: How long to call, and again for segments, s.
        began: `time.monotonic` when its start began.

    Raises:
        GroupError: Workers did not come.
    """
    try:
        present = _gather(engine, workers)
        for future in [engine.start(worker, Echo, config) for worker in present]:
            future.result(_START_SECONDS)
        started = monotonic() - began
        calls, _ = _call_all(engine, present, "nothing", seconds)
        segments, size = _call_all(engine, present, "segment", seconds)
        times = [1e3 * _broadcast(engine, present, w) for w in _versions(config)]
        for future in [engine.call(worker, "stop") for worker in present]:
            future.result(_CALL_SECONDS)
    finally:
        engine.close()
    return EngineFigures(
        start_seconds=started,
        calls_per_second=calls,
        segments_per_second=segments,
        megabytes_per_second=segments * size / 1e6,
        broadcast_ms_median=float(np.median(times)),
        broadcast_ms_p99=float(np.percentile(times, 99)),
    )


def _gather(engine: Engine, count: int) -> list[Worker]:
    present: list[Worker] = []
    deadline = monotonic() + _START_SECONDS
    while len(present) < count:
        present += engine.changes().joined
        if monotonic() > deadline:
            raise GroupError(f"{len(present)} of {count} workers came in {_START_SECONDS:.0f} s")
        sleep(0.01)
    return present


def _call_all(
    engine: Engine, workers: list[Worker], method: str, seconds: float
) -> tuple[float, float]:
    """Keep one call under way to each worker; return answers per second and bytes in each."""
    under_way: dict[Future[Any], Worker] = {
        engine.call(worker, method): worker for worker in workers
    }
    begin, answers, size = perf_counter(), 0, 0.0
    while perf_counter() - begin < seconds:
        done, _ = wait(under_way, _CALL_SECONDS, "FIRST_COMPLETED")
        for future in done:
            value = future.result()
            if isinstance(value, Segment):
                arrays = [getattr(value.rollout, f.name) for f in fields(value.rollout)]
                size = float(sum(a.nbytes for a in arrays if isinstance(a, np.ndarray)))
            worker = under_way.pop(future)
            under_way[engine.call(worker, method)] = worker
            answers += 1
    took = perf_counter() - begin
    wait(under_way, _CALL_SECONDS)
    return answers / took, size


def _versions(config: RunConfig) -> list[Weights]:
    spec = policy_spec(config, LinkVectorEnv(config.env.agents, config.env))
    arrays = {name: np.zeros(shape, np.float32) for name, shape in expected_shapes(spec).items()}
    return [Weights(version, arrays) for version in range(_BROADCASTS)]


def _broadcast(engine: Engine, workers: list[Worker], weights: Weights) -> float:
    """Send weights to all; return the time until all have confirmed them, s."""
    begin = perf_counter()
    for future in [engine.call(worker, "set_weights", weights) for worker in workers]:
        future.result(_CALL_SECONDS)
    return perf_counter() - begin
