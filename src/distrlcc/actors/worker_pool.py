"""Keeps an engine's workers busy: broadcasts weights, collects segments, drops silent workers.

A thread of its own does so, as workers are answered during a long update or scoring, too.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from distrlcc.actors.actor import Actor, Report, Segment, link_of
from distrlcc.actors.engine import Engine, Worker, WorkerGoneError
from distrlcc.actors.segment_queue import GONE, LATE, SegmentQueue
from distrlcc.learn.learner import Weights
from distrlcc.limits import limits
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_state import check_links
from distrlcc.runs.train import late

_OFFENCES = 2  # segments with numbers that are not finite after which a worker is dropped
_SUSPENDED_SECONDS = 1.0
"""If one turn of the pool's thread takes longer than this (s), the process was suspended."""


@dataclass
class WorkerState:
    """The state of a living worker, and the calls that it has not answered."""

    worker: Worker
    report: Report  # its last, without the segments
    lag: int = 0  # updates that its last segment was behind when it came
    steps_per_second: float = 0.0
    heard: float = field(default_factory=monotonic)  # when it answered last
    asked: str = "start"  # the call that it has not answered yet; empty: none
    last_asked: float = 0.0
    sent: int = -1  # version of the weights that it was sent last
    sending: float = 0.0  # when these were published, until it has confirmed them
    marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=12))
    """Times and steps of its last reports, for the speed."""
    not_finite: int = 0  # segments of it that were refused, as their numbers were not finite

    @property
    def silent_seconds(self) -> float:
        """Time since it answered last, s."""
        return monotonic() - self.heard


class WorkerPool:
    """All workers of an engine; a context manager."""

    def __init__(
        self,
        engine: Engine,
        config: RunConfig,
        queue: SegmentQueue,
        links: dict[str, str],
        *,
        capacity: int,
        first_step: Callable[[], int] = lambda: 0,
        stopping: Callable[[], bool] = lambda: False,
        patience: float = 0.0,
    ) -> None:
        """Prepare; the thread begins with the context. ``capacity`` segments may wait in the queue.

        Workers' files of links must be as ``links`` say, which they add to; see `RunState.links`. A
        worker that joins begins at ``first_step``; see `Actor`. ``stopping`` is asked at every
        tick, and stops the workers. The first one has ``patience`` s to start.
        """
        # What the caller gives.
        self.queue = queue
        self._engine, self._config, self._first_step = engine, config, first_step
        self._links = links
        self._capacity, self._stopping = capacity, stopping
        # What the pool's thread and the trainer's share.
        self._answers: SimpleQueue[tuple[Worker, str, Future[Any]] | None] = SimpleQueue()
        self._changed = threading.Condition(queue.lock)  # guards what follows, and the queue
        self._workers: dict[Worker, WorkerState] = {}
        self._events: list[str] = []
        self._weights: Weights | None = None
        self._published, self._publish_seconds = 0.0, 0.0
        self._empty_since = monotonic() + patience
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="worker pool", daemon=True)

    def __enter__(self) -> "WorkerPool":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers; what they had left is lost."""
        self._closing.set()
        self._answers.put(None)
        self._thread.join(2 * limits().kill)

    def publish(self, weights: Weights) -> None:
        """Broadcast weights to all workers, and to those that join later."""
        with self._changed:
            self._weights, self._published = weights, monotonic()
        self._answers.put(None)

    def collect(self, count: int, version: int, stop: Callable[[], bool]) -> list[Segment]:
        """Return the oldest ``count`` segments for a version, each used once; none: ``stop()``."""
        while True:
            with self._changed:
                chosen = self.queue.take(count, version)
                if not chosen and self._failure is not None:
                    raise self._failure
                if not chosen:
                    self._changed.wait(limits().tick)
            if chosen:
                self._answers.put(None)  # there is room again
            if chosen or stop():
                return chosen

    def workers(self) -> list[WorkerState]:
        """Return what is known of the living workers, by index."""
        with self._changed:
            return sorted(self._workers.values(), key=lambda state: state.worker.index)

    def take_events(self) -> list[str]:
        """Return which workers joined and left since the last call, a line each."""
        with self._changed:
            seen, self._events = self._events, []
        return seen

    def take_publish_seconds(self) -> float:
        """Return the longest time from a broadcast to an answer since the last call, s; or 0."""
        with self._changed:
            seen, self._publish_seconds = self._publish_seconds, 0.0
        return seen

    @property
    def empty_seconds(self) -> float:
        """Seconds without any acting worker. Workers that never started are not counted."""
        with self._changed:
            if any(state.asked != "start" for state in self._workers.values()):
                return 0.0
            return max(monotonic() - self._empty_since, 0.0)

    # The thread

    def _run(self) -> None:
        try:
            turned = monotonic()
            while not (self._closing.is_set() or self._stopping()):
                self._receive_changes()
                self._receive_answers()
                now = monotonic()
                self._drop_silent(suspended=now - turned)
                turned = now
                for state in list(self._workers.values()):
                    self._ask(state)
            # Stop all at once; a frozen worker costs no more than the time limit.
            stops = [self._engine.call(worker, "stop") for worker in self._workers]
            wait(stops, limits().kill)
            self._engine.close()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._engine.close()

    def _receive_changes(self) -> None:
        changes = self._engine.changes()
        for worker in changes.joined:
            with self._changed:
                state = WorkerState(worker, Report(link_of(self._config, worker.index)))
                self._workers[worker] = state
            what = (self._config, worker.index, self._first_step())
            self._send(worker, "start", self._engine.start(worker, Actor, *what))
        for worker, reason in changes.left.items():
            self._drop(worker, reason)

    def _receive_answers(self) -> None:
        with suppress(Empty):
            answer = self._answers.get(timeout=limits().tick)
            while True:
                if answer is not None:
                    self._receive(*answer)
                answer = self._answers.get_nowait()

    def _receive(self, worker: Worker, kind: str, future: Future[Any]) -> None:
        # Refuse the segments of a worker that was dropped and answers after all.
        state = self._workers.get(worker)
        if state is None:
            if kind == "report" and future.exception() is None:
                self.queue.refuse(len(future.result().segments), GONE)
            return
        # Drop a worker whose call failed.
        try:
            result = future.result()
        except WorkerGoneError as error:
            self._receive_changes()  # they say why, as a rule
            self._drop(worker, str(error))
            return
        except Exception as error:
            self._drop(worker, f"failed: {error}")
            return
        # Else it lives; after a start or a report it is idle again.
        state.heard = monotonic()
        if kind == "weights":
            with self._changed:
                taken = state.heard - state.sending
                self._publish_seconds, state.sending = max(self._publish_seconds, taken), 0.0
            return
        state.asked = ""
        if kind == "start":
            with self._changed:
                self._events.append(f"joined: {worker}, on {state.report.link}")
        else:
            self._receive_report(state, result)

    def _receive_report(self, state: WorkerState, report: Report) -> None:
        check_links(self._links, report.files)
        state.marks.append((monotonic(), report.steps))
        (begin, first), (end, last) = state.marks[0], state.marks[-1]
        with self._changed:
            state.report = replace(report, segments=[])
            state.steps_per_second = (last - first) / (end - begin) if end > begin else 0.0
            if report.segments and self._weights is not None:
                state.lag = self._weights.version - report.segments[-1].rollout.version
            refused = self.queue.add(report.segments)
            for segment, why in refused:
                whose = str(state.worker)
                said = f"{whose}: a segment {why}"
                if why == LATE:
                    said = late(segment.stats.late_share, whose)
                else:
                    state.not_finite += 1
                self._events.append(f"refused: {said}")
            self._changed.notify_all()
        if state.not_finite >= _OFFENCES:
            reason = f"{_OFFENCES} times sent numbers that are not finite"
            self._drop(state.worker, reason, again=False)
        if report.still_seconds > limits().stall:
            self._drop(state.worker, f"its environment hangs for {report.still_seconds:.0f} s")

    def _drop_silent(self, suspended: float) -> None:
        for state in list(self._workers.values()):
            # Do not count a worker as silent for time in which this process was suspended.
            if suspended > _SUSPENDED_SECONDS:
                state.heard = min(state.heard + suspended, monotonic())
            limit = limits().start if state.asked == "start" else limits().worker_silence
            if state.silent_seconds > limit:
                self._drop(state.worker, f"has not answered for {limit:.0f} s")

    def _ask(self, state: WorkerState) -> None:
        """Ask an idle worker for its segments, and send it the newest weights."""
        with self._changed:
            weights, published = self._weights, self._published
            room = max(self._capacity - len(self.queue), 0)
        if state.asked == "start" or weights is None:
            return
        worker, now, period = state.worker, monotonic(), limits().heartbeat
        if state.sent < weights.version and not state.sending:
            state.sent, state.sending = weights.version, published
            self._send(worker, "weights", self._engine.call(worker, "set_weights", weights))
        # Asked for no segment it answers at once: ask it seldom, to hear that it lives.
        if not state.asked and (room or now - state.last_asked > period):
            state.asked, state.last_asked = "report", now
            self._send(worker, "report", self._engine.call(worker, "report", room, period))

    def _send(self, worker: Worker, kind: str, future: Future[Any]) -> None:
        future.add_done_callback(lambda done: self._answers.put((worker, kind, done)))

    def _drop(self, worker: Worker, reason: str, *, again: bool = True) -> None:
        if worker not in self._workers:
            return
        self._engine.drop(worker, again=again)
        with self._changed:
            state = self._workers.pop(worker)
            left = len(self._workers)
            self._events.append(f"gone: {worker}: {reason}; {left} left")
            if state.asked != "start":
                self._empty_since = monotonic()
            elif not left:  # it could not start: there is nothing more to be patient for
                self._empty_since = min(self._empty_since, monotonic())
