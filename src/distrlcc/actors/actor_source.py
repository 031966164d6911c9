"""Workers as a `Source`: the trainer learns from their segments, side by side in one batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from distrlcc.actors.actor import Segment
from distrlcc.actors.engine import Engine
from distrlcc.actors.segment_queue import LATE, SegmentQueue
from distrlcc.actors.worker_pool import WorkerPool
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError, GroupError
from distrlcc.learn.collect import MOST_LATE_LEARNED, CollectStats
from distrlcc.learn.learner import LocalReducer, Weights
from distrlcc.learn.rollout import Rollout, concatenate
from distrlcc.limits import limits
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import RunState
from distrlcc.runs.source import Source, Stop, new_rollout, policy_spec
from distrlcc.runs.stopper import Stopper

_AHEAD = 2  # updates' worth of segments that may wait for the trainer
_UNSEEN = 64  # segments that a worker may have acted beyond those that came here


class ActorSource(Source):
    """A source whose batches are segments that workers collected."""

    def __init__(self, config: RunConfig, learner: int = 0) -> None:
        """Begin without this learner's workers; raises ConfigError if something does not fit."""
        actors, unit = config.actors, config.env.unit
        own = config.distributed.batch == "per-process"  # then num_envs is each learner's
        parts = actors.parts(own=own)
        if 0 in parts:
            raise ConfigError(
                f"actors.segments_per_update is {actors.segments_per_update}: expected at least "
                f"one for each of {actors.learners} learners"
            )
        if actors.envs_per_worker % unit:
            raise ConfigError(
                f"actors.envs_per_worker is {actors.envs_per_worker}; expected a multiple of "
                f"{unit}, the agents that share links (env.agents, env.rooms)"
            )
        self._config, self._learner, self._several = config, learner, actors.learners > 1
        self._count, self._first = parts[learner], sum(parts[:learner]) * actors.envs_per_worker
        environments = (parts[learner] if own else sum(parts)) * actors.envs_per_worker
        self.warning = ""
        """Why an update learns from another number of environments than a user may expect."""
        if environments != config.num_envs:
            self.warning = (
                f"an update learns from {environments} environments of workers, as actors.nodes, "
                f"envs_per_worker and segments_per_update say, not from num_envs={config.num_envs}"
            )
        self.spec = policy_spec(config, LinkVectorEnv(unit, config.env))
        self.queue = SegmentQueue(actors.max_lag)
        self.first_step = 0  # step from which this run's workers began
        self.reducer = LocalReducer()
        """Breaks an update off after a signal; that of a learner alone."""
        self._update = 0
        self._taken: list[Segment] = []  # of the newest batch
        self._events: list[str] = []  # since the newest update's metrics
        self._waited = self._began = 0.0
        self._good, self._good_at = 0, 0.0  # segments that were not late, and when the last came
        self._failure: Exception | None = None
        self._pool: WorkerPool | None = None
        self._make: Callable[[], WorkerPool]
        self._table: WorkerTable
        self._stopper: Stopper

    def start(
        self,
        make: Callable[[], Engine],
        table: WorkerTable,
        stopper: Stopper,
        state: RunState,
        patience: float,
    ) -> None:
        """Say how to make the workers' engine; the first worker must start in ``patience`` s."""
        self._table, self._stopper = table, stopper
        self.reducer.interrupted = lambda: bool(stopper.signal)

        def pool() -> WorkerPool:
            engine = make()
            self._began = perf_counter() - state.counters.seconds
            return WorkerPool(
                engine,
                self._config,
                self.queue,
                state.links,
                capacity=_AHEAD * self._count,
                first_step=self.fresh_step,
                stopping=lambda: bool(stopper.signal),
                patience=patience,
            ).__enter__()

        self._make = pool

    def next(self, weights: Weights, stop: Stop | None) -> tuple[Rollout, CollectStats] | None:
        """Broadcast the weights, and wait for as many segments as an update takes.

        One of several learners returns an empty batch if the others wait no longer, or if the run
        ends, which it does for all at once.
        """
        self._update, self._taken = weights.version, []
        pool = self._pool = self._pool or self._make()
        begin = self._good_at = perf_counter()
        pool.publish(weights)

        def stops() -> bool:
            # Others wait for those that have workers, for a while.
            share = len(self.queue) / self._count if pool.workers() else 1.0
            cut = stop is not None and stop(int(self._config.rollout_length * share))
            return self._stops(pool) or cut

        try:
            if not self._stops(pool) or self._several:
                self._taken = pool.collect(self._count, self._update, stops)
        except Exception as error:  # the workers are lost, what was learned is not
            self._failure = error
        self._waited, stats = perf_counter() - begin, CollectStats()
        if not self._taken:
            if self._several and self._failure is None:
                return replace(self.nothing(), version=weights.version), stats
            return None
        for segment in self._taken:
            stats.merge(segment.stats)
        joined = concatenate([segment.rollout for segment in self._taken])
        return replace(joined, first_index=self._first), stats

    def nothing(self) -> Rollout:
        """Return a rollout without a row."""
        count = self._count * self._config.actors.envs_per_worker
        return replace(new_rollout(self._config, self.spec, count), first_index=self._first)

    def _stops(self, pool: WorkerPool) -> bool:
        """Show the workers; say whether to wait no longer for segments."""
        config, seconds = self._config, perf_counter() - self._began
        if self._stopper.signal:
            return True
        for event in pool.take_events():
            self._table.note(event)
            self._events.append(event)
        self._table.show(pool.workers(), self._update, seconds)
        if pool.empty_seconds > config.actors.wait_workers:
            none = f"no worker is left for {config.actors.wait_workers:g} s"
            self._failure = GroupError(
                f"learner {self._learner} leaves: {none}"
                if self._several
                else f"{none}; saved after update {self._update}, go on with --load (distrlcc "
                "node) or --resume (distrlcc train)"
            )
        good, now = self.queue.received - self.queue.refused[LATE], perf_counter()
        if good != self._good or pool.empty_seconds:
            self._good, self._good_at = good, now
        elif self.queue.refused[LATE] and now > self._good_at + limits().patience:
            self._failure = GroupError(
                f"no segment of the last {limits().patience:g} s could be learned from: more than "
                f"{MOST_LATE_LEARNED:.0%} of their steps were late; the machines are too slow for "
                "so many links"
            )
        return 0.0 < config.max_seconds <= seconds or self._failure is not None

    def counts(self) -> list[float]:
        """Return the segments of the newest batch, their lags, all segments, and workers."""
        queue, workers = self.queue, self._pool.workers() if self._pool else []
        found = len(self._taken), sum(self._lags), len(workers)
        return [*map(float, (*found, queue.received, queue.used, queue.refused.total()))]

    @property
    def _lags(self) -> list[int]:
        return [self._update - segment.rollout.version for segment in self._taken]

    def metrics(
        self, stats: CollectStats, seconds: float, counts: Sequence[float]
    ) -> dict[str, Any]:
        """Return means over the workers, their number and how old their policies were."""
        published = self._pool.take_publish_seconds() if self._pool else 0.0
        events, self._events = self._events, []
        taken, lags, *totals = counts
        names = "workers", "segments_received", "segments_used", "segments_refused"
        return stats.metrics() | {
            "share_wait": self._waited / seconds,
            "lag": lags / max(taken, 1.0),
            "lag_max": float(max(self._lags, default=0)),
            **dict(zip(names, totals, strict=True)),
            **({"publish_ms": published * 1e3} if published else {}),
            "events": events,
        }

    def fresh_step(self) -> int:
        """Return a step from which links are new: no worker can have come as far."""
        seen = max(self.queue.received, self._update * self._count)
        return self.first_step + (seen + _UNSEEN if seen else 0) * self._config.rollout_length

    def state_dict(self) -> dict[str, Any]:
        """Return the count of segments, and from which step links are new."""
        return {"ledger": self.queue.state_dict(), "first_step": self.first_step}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on; a data set fits the same number of segments in an update."""
        if "ledger" in state:
            self.queue.load_state_dict(state["ledger"])
        self._update = int(state["counters"]["update"])
        self.first_step = int(state.get("first_step", 0))
        self.first_step = self.fresh_step()
        count, data = self._config.actors.envs_per_worker, state["learner"].get("dataset")
        return data is None or data["count"] == self._count * count

    def close(self, update: int) -> Exception | None:
        """Stop the workers, so that all machines are free at once."""
        if self._taken and update == self._update:  # the update was broken off
            self.queue.undo(len(self._taken))
        if self._pool is not None:
            self._pool.close()
        return None if self._stopper.signal else self._failure
