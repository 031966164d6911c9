"""The object on a worker: a thread that steps environments, and the segments that it hands out.

It changes weights only between segments, and is at most `AHEAD` of them ahead of the trainer.
"""

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic

from distrlcc.learn.collect import CollectStats
from distrlcc.learn.learner import Weights
from distrlcc.learn.rollout import Rollout
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.source import EnvSource, Share
from distrlcc.sim.suites import written

AHEAD = 2  # finished segments that an actor keeps before it waits


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of one worker's environments, all acted by one version of the policy."""

    worker: int
    number: int  # counts this worker's segments, from 0
    rollout: Rollout
    stats: CollectStats


@dataclass
class Report:
    """An actor's answer: finished segments and its progress."""

    link: str  # name of the link of the first environment
    segments: list[Segment] = field(default_factory=list)
    version: int = -1  # version of the weights that are acting; -1 before the first
    steps: int = 0  # environment steps since the start
    still_seconds: float = 0.0  # seconds since the last step; 0 while there is nothing to step for
    waited_seconds: float = 0.0
    """Seconds for which its segments were not collected, since the start."""
    last_episode: dict[str, float] = field(default_factory=dict)
    """Mean utilisation and queueing delay (in base RTTs) of the episodes that ended last."""
    files: dict[str, str] = field(default_factory=dict)  # digests, see `RunState.links`


def link_of(config: RunConfig, index: int) -> str:
    """Return the link that a worker acts on; workers beyond the plan take the links in turn."""
    return config.actors.links[index % len(config.actors.links)]


class Actor:
    """Acts from the first `set_weights` to `stop`."""

    def __init__(self, config: RunConfig, index: int, first_step: int = 0) -> None:
        """Set up a worker's link, with draws new from ``first_step`` on; ConfigError: no link."""
        link, self._index = link_of(config, index), index
        self._count = config.actors.envs_per_worker
        # What acts: the environments of this worker's link.
        env = replace(config.env, suites=(link,), suite_weights=())
        self._source = EnvSource(replace(config, env=env), Share(index * self._count, self._count))
        if first_step:
            self._source.collector.begin_at(first_step)
        # What it reports, written by the thread alone.
        self._progress = Report(link, files=written([link]))
        self._number, self._moved = 0, monotonic()
        # What it shares with the trainer's calls.
        self._state = threading.Condition()  # guards what follows
        self._ready: deque[Segment] = deque()
        self._weights: Weights | None = None
        self._error = ""
        self.stopped = False  # whether `stop` was called
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)

    def set_weights(self, weights: Weights) -> int:
        """Act with these weights from the next segment on; return their version."""
        with self._state:
            if self._weights is None or weights.version >= self._weights.version:
                self._weights = weights
            if self._thread.ident is None and not self.stopped:
                self._moved = monotonic()
                self._thread.start()
        return weights.version

    def report(self, most: int, seconds: float) -> Report:
        """Hand out up to ``most`` segments, waiting ``seconds``; RuntimeError if acting failed."""
        with self._state:
            if most:
                self._state.wait_for(lambda: self._ready or self._error or self.stopped, seconds)
            if self._error:
                raise RuntimeError(self._error)
            now = monotonic()
            if len(self._ready) >= AHEAD or not self._thread.is_alive():
                self._moved = now  # it has nothing to step for
            segments = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._state.notify_all()
        still = max(now - self._moved, 0.0)
        return replace(self._progress, segments=segments, still_seconds=still)

    def stop(self) -> None:
        """Stop acting, without waiting for the current step."""
        with self._state:
            self.stopped = True
            self._ready.clear()
            self._state.notify_all()

    def _run(self) -> None:
        try:
            while not self.stopped:
                weights = self._weights
                assert weights is not None
                self._progress.version = weights.version
                rollout, stats = self._source.next(weights, self._row_done)
                self._row_done(rollout.steps)
                if not self.stopped:  # else the segment may have been cut short
                    self._hand_out(rollout.copy(), stats)
        except Exception as error:
            with self._state:
                self._error = f"{type(error).__name__}: {error}"
                self._state.notify_all()
        finally:
            self._source.env.close()

    def _row_done(self, rows: int) -> bool:
        """Count a row; return whether to stop in the middle of a segment."""
        self._progress.steps += self._count
        self._moved = monotonic()
        return self.stopped

    def _hand_out(self, rollout: Rollout, stats: CollectStats) -> None:
        """Offer the segment, and wait while too many wait for the trainer."""
        self._progress.link = self._source.env.link_names()[0]
        if stats.episodes:
            self._progress.last_episode = {
                "utilisation": stats.utilisation / stats.episodes,
                "queueing_delay": stats.queueing_delay / stats.episodes,
            }
        segment = Segment(self._index, self._number, rollout, stats)
        self._number += 1
        begin = monotonic()
        with self._state:
            self._ready.append(segment)
            self._state.notify_all()
            self._state.wait_for(lambda: len(self._ready) < AHEAD or self.stopped)
        self._moved = monotonic()
        self._progress.waited_seconds += self._moved - begin
