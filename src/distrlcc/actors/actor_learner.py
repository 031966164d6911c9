"""The training loop of the actor-learner topology: others act, one trainer learns.

The same `Learner.update` as in every topology, on segments of all workers side by side. Read
`train_with_actors` top to bottom.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from distrlcc.actors.actor_training import ActorTraining
from distrlcc.actors.worker_pool import WorkerPool
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.errors import GroupError
from distrlcc.learn.collect_stats import CollectStats
from distrlcc.learn.rollout import concatenate
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.stopper import Stopper


def train_with_actors(
    training: ActorTraining,
    pool: WorkerPool,
    recorder: Recorder,
    table: WorkerTable,
    stopper: Stopper,
) -> int:
    """Learn from the pool's segments until the steps, the time or the user say stop, and save.

    Args:
        training: What is trained.
        pool: Entered; asks the workers.
        recorder: Scores, saves and logs.
        table: Shows the workers.
        stopper: Hears of signals.

    Returns:
        0, or the number of the signal that ended the run.

    Raises:
        GroupError: No worker was left for too long; everything was saved.
    """
    config, counters, learner = training.config, training.counters, training.learner
    actors, ledger = config.actors, training.ledger
    begin, updated = perf_counter() - counters.seconds, perf_counter()
    alone = False

    def stop() -> bool:
        nonlocal alone
        if not stopper.signal:
            table.show(pool, counters.update, perf_counter() - begin)
        alone = pool.empty_seconds > actors.wait_workers
        late = config.max_seconds and perf_counter() - begin >= config.max_seconds
        return bool(stopper.signal or late or alone)

    pool.publish(learner.weights())
    while counters.steps < config.total_steps and not stop():
        asked = perf_counter()
        try:
            segments = pool.collect(actors.per_update, counters.update, stop)
        except Exception:  # the workers are lost, what was learned is not
            recorder.finish()
            raise
        if not segments:
            break
        gathered = perf_counter()
        lags = [counters.update - segment.version for segment in segments]
        rollout = concatenate([segment.rollout for segment in segments])
        metrics = training.update(rollout, lambda: bool(stopper.signal))
        if metrics is None:
            ledger.undo(len(segments))
            break
        stats = CollectStats()
        for segment in segments:
            stats.merge(segment.stats)
        training.commit(stats)  # which may restore earlier weights
        pool.publish(learner.weights())
        now = perf_counter()
        counters.seconds, seconds, updated = now - begin, now - updated, now
        metrics |= {
            "steps": float(counters.steps),
            "steps_per_second": stats.steps / seconds,
            "share_wait": (gathered - asked) / seconds,
            "share_update": (now - gathered) / seconds,
            "lag": float(np.mean(lags)),
            "lag_max": float(max(lags)),
            "workers": float(len(pool.workers())),
            "segments_received": float(ledger.received),
            "segments_used": float(ledger.used),
            "segments_refused": float(ledger.refused.total()),
        }
        published = pool.take_publish_seconds()
        if published:
            metrics["publish_ms"] = published * 1e3
        recorder.record(stats.metrics() | metrics, stats, table.take_events())
    pool.close()  # first, so that all machines are free at once
    recorder.finish(scored=not stopper.signal)
    if alone and not stopper.signal:
        raise GroupError(
            f"no worker is left for {actors.wait_workers:g} s; saved after update "
            f"{counters.update}, go on with --load (distrlcc node) or --resume (distrlcc train)"
        )
    return 0 if counters.steps >= config.total_steps else stopper.signal
