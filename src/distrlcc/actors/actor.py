"""A worker's object: steps its environments in a thread and hands out segments.

The thread acts with one copy of the weights for a whole segment and takes over newer ones between
two. It is at most a few segments ahead of the trainer; then it waits. Environment, recurrent state
and episodes go on across segments.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from distrlcc.actors.pace import LATE_SECONDS, Pace
from distrlcc.actors.segment import Report, Segment
from distrlcc.actors.stillness import Stillness
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.learn.collect import Collector, CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.source import new_rollout, policy_spec

AHEAD = 2
"""Finished segments that an actor keeps before it waits."""


@dataclass(frozen=True)
class ActorJob:
    """What a worker does."""

    config: RunConfig
    index: int
    """Number of the worker."""
    link: str
    """Suite, scenario id or file that it trains on."""
    envs: int = 1
    pace_seconds: float = 0.0
    """Time that a step lasts, s, as on a real link; 0: as fast as it goes."""
    first_step: int = 0
    """Begins with links that no step before this one can have seen."""


class Actor:
    """Acts as soon as it has weights."""

    def __init__(self, job: ActorJob) -> None:
        """Set up the environments.

        Raises:
            ConfigError: The link does not exist.
        """
        self._job, config = job, job.config
        links = replace(config.env, suites=(job.link,), suite_weights=())
        self._env = LinkVectorEnv(
            job.envs,
            links,
            seed=config.seed,
            first_index=job.index * job.envs,
            with_labels=config.dagger is not None,
            with_outcomes=config.outcomes > 0,
        )
        spec = policy_spec(config, self._env)
        self._collector = Collector(self._env, spec, config.seed)
        if job.first_step:
            self._collector.begin_at(job.first_step)
        self._rollout = new_rollout(config, spec, job.envs)
        self._episodes = np.zeros(job.envs, np.int64)
        self._number = self._steps = 0
        self._pace = Pace(job.pace_seconds, job.index) if job.pace_seconds else None
        self._acting, self._last_episode = -1, dict[str, float]()
        self._link = job.link
        self._waited = 0.0
        self._stillness = Stillness()
        self._ready: deque[Segment] = deque()
        self._state = threading.Condition()  # guards _ready, _weights, _closing, _error
        self._weights: Weights | None = None
        self._closing, self._error = False, ""
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)

    def set_weights(self, weights: Weights) -> int:
        """Act with these weights from the next segment on; return their version."""
        with self._state:
            newer = self._weights is None or weights.version >= self._weights.version
            self._weights = weights if newer else self._weights
            if self._acting < 0:
                self._stillness.moved()
            if self._thread.ident is None and not self._closing:
                self._thread.start()
        return weights.version

    def report(self, most: int, seconds: float) -> Report:
        """Hand out finished segments and say how it goes.

        Args:
            most: Segments to hand out at most; the others stay.
            seconds: How long to wait for the first, s.

        Raises:
            RuntimeError: Acting failed.
        """
        deadline = time.monotonic() + seconds
        with self._state:
            while most and not (self._ready or self._error or self._closing):
                left = deadline - time.monotonic()
                if left <= 0.0:
                    break
                self._state.wait(left)
            if self._error:
                raise RuntimeError(self._error)
            full = len(self._ready) >= AHEAD
            segments = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._state.notify_all()
        running, pace = self._thread.is_alive() and not full, self._pace
        still = self._stillness.seconds(self._thread.native_id) - 2.0 * self._job.pace_seconds
        return Report(
            segments,
            self._link,
            self._acting,
            self._steps,
            max(still, 0.0) if running else 0.0,
            self._waited,
            self._last_episode,
            pace.steps if pace else 0,
            pace.late if pace else 0,
            pace.lateness.tolist() if pace else [],
        )

    def stop(self) -> int:
        """Stop acting, without waiting for the step at hand; return the segments left over."""
        with self._state:
            self._closing = True
            left = len(self._ready)
            self._ready.clear()
            self._state.notify_all()
        return left

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._closing

    def _run(self) -> None:
        try:
            if self._pace is not None:
                self._pace.begin()
            while not self._closing:
                assert self._weights is not None
                self._collector.set_weights(self._weights)
                self._acting = self._weights.version
                stats = self._collector.collect(self._rollout, self._row_done)
                self._row_done(self._rollout.steps)
                self._link = self._env.link_names()[0]
                self._hand_out(stats)
        except Exception as error:
            with self._state:
                self._error = f"{type(error).__name__}: {error}"
                self._state.notify_all()

    def _row_done(self, rows: int) -> bool:
        """Keep the pace after a row; return whether to stop in the middle of a segment."""
        self._steps += self._job.envs
        if self._pace is not None:
            self._pace.keep()
        self._stillness.moved()
        return self._closing

    def _hand_out(self, stats: CollectStats) -> None:
        rollout = self._rollout
        if self._closing:
            return  # it may have been cut short
        segment = Segment(
            self._job.index, self._number, self._episodes.copy(), rollout.copy(), stats
        )
        self._number += 1
        self._episodes += (rollout.terminated | rollout.truncated)[: rollout.steps].sum(0)
        if stats.episodes:
            self._last_episode = {
                "utilisation": stats.utilisation / stats.episodes,
                "queueing_delay": stats.queueing_delay / stats.episodes,
            }
        begin = time.monotonic()
        with self._state:
            self._ready.append(segment)
            self._state.notify_all()
            while len(self._ready) >= AHEAD and not self._closing:
                self._state.wait(1.0)
                self._stillness.moved()
        waited = time.monotonic() - begin
        if waited > LATE_SECONDS:
            self._waited += waited
            if self._pace is not None:
                self._pace.pardon()
