"""Workers as a `Source`: the trainer learns from their segments, side by side in one batch."""

import warnings
from time import perf_counter
from typing import Any

import numpy as np

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
from distrlcc.runs.source import Source, Stop, policy_spec
from distrlcc.runs.stopper import Stopper

_AHEAD = 2
"""Updates' worth of segments that may wait for the trainer."""
_UNSEEN = 64
"""Segments that a worker may have acted beyond those that came here."""


class ActorSource(Source):
    """A source whose batches are segments that workers collected."""

    def __init__(self, config: RunConfig) -> None:
        """Begin without workers; :meth:`start` has them.

        Raises:
            ConfigError: Something in the configuration does not exist or fit.
        """
        actors, unit = config.actors, config.env.unit
        if actors.envs_per_worker % unit:
            raise ConfigError(
                f"actors.envs_per_worker is {actors.envs_per_worker}; expected a multiple of "
                f"{unit}, the agents that share links (env.agents, env.rooms)"
            )
        self._config = config
        self.spec = policy_spec(config, LinkVectorEnv(unit, config.env))
        self.queue = SegmentQueue(actors.max_lag)
        self.first_step = 0
        """Step from which this run's workers began."""
        self.reducer = LocalReducer()
        """Breaks an update off after a signal; the learner's."""
        self._update = 0
        self._taken: list[Segment] = []  # of the newest batch
        self._events: list[str] = []  # since the newest update's metrics
        self._waited = self._began = 0.0
        self._good, self._good_at = 0, 0.0  # segments that were not late, and when the last came
        self._failure: Exception | None = None
        self._pool: WorkerPool
        self._table: WorkerTable
        self._stopper: Stopper

    def start(
        self,
        engine: Engine,
        table: WorkerTable,
        stopper: Stopper,
        *,
        seconds: float,
        patience: float,
    ) -> WorkerPool:
        """Return the pool of an engine's workers, to be entered.

        The run has had ``seconds`` so far; the first worker has ``patience`` seconds to start.
        """
        self._table, self._stopper = table, stopper
        self._began = perf_counter() - seconds
        self.reducer.interrupted = lambda: bool(stopper.signal)
        self._pool = WorkerPool(
            engine,
            self._config,
            self.queue,
            capacity=_AHEAD * self._config.actors.per_update,
            first_step=self.fresh_step,
            stopping=lambda: bool(stopper.signal),
            patience=patience,
        )
        return self._pool

    def next(self, weights: Weights, stop: Stop | None) -> tuple[Rollout, CollectStats] | None:
        """Broadcast the weights, and wait for as many segments as an update takes."""
        pool, count = self._pool, self._config.actors.per_update
        self._update, self._taken, begin = weights.version, [], perf_counter()
        pool.publish(weights)
        self._good_at = begin
        if self._stops():
            return None
        try:
            self._taken = pool.collect(count, self._update, self._stops)
        except Exception as error:  # the workers are lost, what was learned is not
            self._failure = error
        if not self._taken:
            return None
        self._waited = perf_counter() - begin
        stats = CollectStats()
        for segment in self._taken:
            stats.merge(segment.stats)
        return concatenate([segment.rollout for segment in self._taken]), stats

    def _stops(self) -> bool:
        """Show the workers; say whether to wait no longer for segments."""
        config, seconds = self._config, perf_counter() - self._began
        if self._stopper.signal:
            return True
        for event in self._pool.take_events():
            self._table.progress.note(event)
            self._events.append(event)
        self._table.show(self._pool.workers(), self._update, seconds)
        if self._pool.empty_seconds > config.actors.wait_workers:
            self._failure = GroupError(
                f"no worker is left for {config.actors.wait_workers:g} s; saved after update "
                f"{self._update}, go on with --load (distrlcc node) or --resume (distrlcc train)"
            )
        good, now = self.queue.received - self.queue.refused[LATE], perf_counter()
        if good != self._good or self._pool.empty_seconds:
            self._good, self._good_at = good, now
        elif self.queue.refused[LATE] and now > self._good_at + limits().patience:
            self._failure = GroupError(
                f"no segment of the last {limits().patience:g} s could be learned from: more than "
                f"{MOST_LATE_LEARNED:.0%} of their steps were late; the machines are too slow for "
                "so many links"
            )
        late = bool(config.max_seconds) and seconds >= config.max_seconds
        return late or self._failure is not None

    def metrics(self, stats: CollectStats, seconds: float) -> dict[str, Any]:
        """Return means over the workers, their number and how old their policies were."""
        lags = [self._update - segment.version for segment in self._taken]
        published = self._pool.take_publish_seconds()
        events, self._events = self._events, []
        return stats.metrics() | {
            "share_wait": self._waited / seconds,
            "lag": float(np.mean(lags)),
            "lag_max": float(max(lags)),
            "workers": float(len(self._pool.workers())),
            "segments_received": float(self.queue.received),
            "segments_used": float(self.queue.used),
            "segments_refused": float(self.queue.refused.total()),
            **({"publish_ms": published * 1e3} if published else {}),
            "events": events,
        }

    def fresh_step(self) -> int:
        """Return a step from which links are new: no worker can have come as far."""
        seen = max(self.queue.received, self._update)
        return self.first_step + (seen + _UNSEEN if seen else 0) * self._config.rollout_length

    def state_dict(self) -> dict[str, Any]:
        """Return the count of segments, and from which step links are new."""
        return {"ledger": self.queue.state_dict(), "first_step": self.first_step}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on; with another number of segments in an update a data set fills anew."""
        actors, data = self._config.actors, state["learner"].get("dataset")
        fits = data is None or data["count"] == actors.per_update * actors.envs_per_worker
        if not fits:
            warnings.warn(
                "the data set is of another number of workers or environments, and fills anew",
                stacklevel=2,
            )
        if "ledger" in state:
            self.queue.load_state_dict(state["ledger"])
        self._update = int(state["counters"]["update"])
        self.first_step = int(state.get("first_step", 0))
        self.first_step = self.fresh_step()
        return fits

    def close(self, update: int) -> Exception | None:
        """Stop the workers, so that all machines are free at once."""
        if self._taken and update == self._update:  # the update was broken off
            self.queue.undo(len(self._taken))
        self._pool.close()
        return None if self._stopper.signal else self._failure
