"""Keeps the workers busy: a thread that asks for segments, sends weights and gives up the silent.

The trainer's own thread learns, and only takes segments from here; so workers are answered while an
update or a scoring takes long. When enough segments wait, workers are not asked for more, and wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any

from distrlcc.actors.actor import Actor, ActorJob
from distrlcc.actors.engine import Engine, Worker, WorkerGoneError
from distrlcc.actors.ledger import ENDED, GONE, Ledger
from distrlcc.actors.segment import Report, Segment
from distrlcc.learn.learner import Weights

SILENT_SECONDS = 8.0
"""A worker that answers nothing for this long is given up, s."""
STILL_SECONDS = 10.0
"""A worker whose environment does not step for this long is given up, s."""
START_SECONDS = 60.0
"""Time that a worker has to set up its environments, s."""
_ASK_SECONDS = 0.5
"""Time that a worker may take to answer that it has nothing, s."""
_TICK = 0.1
_STANDSTILL_SECONDS = 1.0
_STOP_SECONDS = 2.0


@dataclass
class Row:
    """What is known of a living worker."""

    worker: Worker
    link: str
    version: int = -1
    """Of the weights that act."""
    lag: int = 0
    """Updates that its last segment was behind when it came."""
    steps: int = 0
    steps_per_second: float = 0.0
    heard: float = field(default_factory=monotonic)
    paced_steps: int = 0
    late_steps: int = 0
    lateness: list[int] = field(default_factory=list)
    waited_seconds: float = 0.0
    last_episode: dict[str, float] = field(default_factory=dict)

    @property
    def age(self) -> float:
        """Time since it answered last, s."""
        return monotonic() - self.heard


@dataclass
class _Post:
    """A worker and what it was asked."""

    row: Row
    asked: str = "start"
    """The call that is under way; empty: none."""
    sent: int = -1
    """Version of the weights that it was sent last."""
    sending: bool = False
    """Whether it has not confirmed that version yet."""
    last_asked: float = 0.0
    began: float = field(default_factory=monotonic)
    marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=12))


class Crew:
    """All workers of an engine; a context manager."""

    def __init__(
        self,
        engine: Engine,
        job_of: Callable[[int], ActorJob],
        ledger: Ledger,
        *,
        capacity: int,
        stopping: Callable[[], bool] = lambda: False,
        patience: float = 0.0,
    ) -> None:
        """Take who works for whom; the thread begins with the context.

        Args:
            engine: Has the workers.
            job_of: Asked when a worker comes, with its index, for what it shall do.
            ledger: Every segment is entered here.
            capacity: Segments that may wait for the trainer.
            stopping: Asked again and again; True stops the workers at once, whatever the trainer
                is at.
            patience: Time that the first worker has to begin, s, before there is said to be none.
        """
        self._engine, self._job_of, self._ledger = engine, job_of, ledger
        self._capacity, self._stopping = capacity, stopping
        self._posts: dict[Worker, _Post] = {}
        self._answers: SimpleQueue[tuple[Worker, str, Future[Any]] | None] = SimpleQueue()
        self._state = threading.Condition(ledger.lock)  # guards what follows, and the ledger
        self._segments: deque[Segment] = deque()
        self._events: list[str] = []
        self._published: tuple[Weights, float] | None = None
        self._publish_seconds: list[float] = []
        self._unconfirmed: dict[int, tuple[float, set[Worker]]] = {}
        self._empty_since = monotonic() + patience
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="crew", daemon=True)

    def __enter__(self) -> Crew:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers, and enter in the ledger what was left over."""
        self._closing.set()
        self._answers.put(None)
        self._thread.join(2 * _STOP_SECONDS)

    def publish(self, weights: Weights) -> None:
        """Send weights to all workers, those that come later too."""
        now = monotonic()
        with self._state:
            self._published = (weights, now)
            if self._posts:
                self._unconfirmed[weights.version] = (now, set(self._posts))
        self._answers.put(None)

    def gather(self, count: int, version: int, stop: Callable[[], bool]) -> list[Segment]:
        """Return segments for one update, the oldest first, each entered as used.

        Args:
            count: How many.
            version: Of the weights that will learn from them: older ones may be refused.
            stop: Asked about every 0.1 s; True gives up, and nothing is used.

        Returns:
            ``count`` segments, or none.
        """
        chosen: list[Segment] = []
        while True:
            with self._state:
                while self._segments and len(chosen) < count:
                    segment = self._segments.popleft()
                    if self._ledger.use(segment, version):
                        chosen.append(segment)
                if len(chosen) == count:
                    self._answers.put(None)  # there is room again
                    return chosen
                if self._failure is not None:
                    raise self._failure
                self._state.wait(_TICK)
            if stop():
                with self._state:
                    self._ledger.put_back(len(chosen))
                    self._segments.extendleft(reversed(chosen))
                return []

    def rows(self) -> list[Row]:
        """Return what is known of the living workers, by index."""
        with self._state:
            return sorted((post.row for post in self._posts.values()), key=lambda r: r.worker.index)

    def take_events(self) -> list[str]:
        """Return who came and left since the last call, a line each."""
        with self._state:
            seen, self._events = self._events, []
        return seen

    def take_publish_seconds(self) -> list[float]:
        """Return how long versions took, s, until all workers had confirmed one or a newer one.

        Of the versions of which that came to be so since the last call.
        """
        with self._state:
            seen, self._publish_seconds = self._publish_seconds, []
        return seen

    @property
    def empty_seconds(self) -> float:
        """Time for which no worker has acted, s; those that do not come to begin do not count."""
        with self._state:
            if any(post.asked != "start" for post in self._posts.values()):
                return 0.0
            return max(monotonic() - self._empty_since, 0.0)

    # The thread

    def _run(self) -> None:
        try:
            turned = monotonic()
            while not (self._closing.is_set() or self._stopping()):
                self._see_changes()
                self._see_answers()
                self._forgive(monotonic() - turned)
                turned = monotonic()
                self._give_up_silent()
                for worker, post in list(self._posts.items()):
                    self._ask(worker, post)
            self._stop_all()
        except BaseException as error:
            with self._state:
                self._failure = error
                self._state.notify_all()
            self._engine.close()

    def _see_changes(self) -> None:
        changes = self._engine.changes()
        for worker in changes.joined:
            job = self._job_of(worker.index)
            with self._state:
                self._posts[worker] = _Post(Row(worker, job.link))
            self._send(worker, "start", self._engine.start(worker, Actor, job))
        for worker, reason in changes.left.items():
            self._lose(worker, reason)

    def _see_answers(self) -> None:
        with suppress(Empty):
            answer = self._answers.get(timeout=_TICK)
            while True:
                if answer is not None:
                    self._see(*answer)
                answer = self._answers.get_nowait()

    def _see(self, worker: Worker, kind: str, future: Future[Any]) -> None:
        post = self._posts.get(worker)
        if post is None:  # it was given up, and answers after all
            if kind == "report" and future.exception() is None:
                with self._state:
                    self._ledger.refuse(len(future.result().segments), GONE)
            return
        try:
            result = future.result()
        except WorkerGoneError as error:
            self._lose(worker, str(error))
            return
        except Exception as error:
            self._lose(worker, f"failed: {error}")
            return
        post.row.heard = monotonic()
        if kind == "weights":
            post.sending = False
            self._confirm(worker, post.sent)
            return
        post.asked = ""
        if kind == "start":
            with self._state:
                self._events.append(f"joined: {worker}, on {post.row.link}")
        else:
            self._take(post, result)

    def _take(self, post: _Post, report: Report) -> None:
        """Take in a worker's segments and how it is."""
        row, now = post.row, perf_counter()
        post.marks.append((now, report.steps))
        (begin, first), (end, last) = post.marks[0], post.marks[-1]
        with self._state:
            row.link, row.version, row.steps = report.link, report.version, report.steps
            row.steps_per_second = (last - first) / (end - begin) if end > begin else 0.0
            row.paced_steps, row.late_steps = report.paced_steps, report.late_steps
            row.lateness = report.lateness
            row.waited_seconds, row.last_episode = report.waited_seconds, report.last_episode
            for segment in report.segments:
                newest = self._published[0].version if self._published else segment.version
                row.lag = newest - segment.version
                if self._ledger.receive(segment, row.worker):
                    self._segments.append(segment)
            self._state.notify_all()
        if report.still_seconds > STILL_SECONDS:
            self._lose(row.worker, f"its environment hangs for {report.still_seconds:.0f} s")

    def _confirm(self, worker: Worker, version: float) -> None:
        """Note that a worker has these weights, or that nobody waits for it any more."""
        now = monotonic()
        with self._state:
            for published, (since, waiting) in list(self._unconfirmed.items()):
                if published <= version:
                    waiting.discard(worker)
                if not waiting:
                    del self._unconfirmed[published]
                    self._publish_seconds.append(now - since)

    def _forgive(self, seconds: float) -> None:
        """Hold nobody's silence against him while this process itself stood still."""
        if seconds > _STANDSTILL_SECONDS:
            for post in self._posts.values():
                post.row.heard = min(post.row.heard + seconds, monotonic())

    def _give_up_silent(self) -> None:
        for worker, post in list(self._posts.items()):
            limit = START_SECONDS if post.asked == "start" else SILENT_SECONDS
            if post.row.age > limit:
                self._lose(worker, f"has not answered for {limit:.0f} s")

    def _ask(self, worker: Worker, post: _Post) -> None:
        """Ask an idle worker for its segments, and send it what was published."""
        if post.asked == "start":
            return
        with self._state:
            published, room = self._published, self._capacity - len(self._segments)
        if published is None:
            return
        weights, _ = published
        if post.sent < weights.version and not post.sending:
            post.sent, post.sending = weights.version, True
            self._send(worker, "weights", self._engine.call(worker, "set_weights", weights))
        wanted, now = max(room, 0), monotonic()
        # One that is asked for nothing answers at once: ask it now and then, to hear that it lives.
        if not post.asked and (wanted or now - post.last_asked > _ASK_SECONDS):
            post.asked, post.last_asked = "report", now
            self._send(worker, "report", self._engine.call(worker, "report", wanted, _ASK_SECONDS))

    def _send(self, worker: Worker, kind: str, future: Future[Any]) -> None:
        future.add_done_callback(lambda done: self._answers.put((worker, kind, done)))

    def _lose(self, worker: Worker, reason: str) -> None:
        if worker not in self._posts:
            return
        self._engine.drop(worker)
        with self._state:
            post = self._posts.pop(worker)
            left = len(self._posts)
            self._events.append(f"gone: {worker}: {reason}; {left} left")
            if post.asked != "start":
                self._empty_since = monotonic()
            elif not left:  # who could not begin is gone, and the patience for him too
                self._empty_since = min(self._empty_since, monotonic())
        self._confirm(worker, float("inf"))

    def _stop_all(self) -> None:
        """Tell all workers to stop, and enter what they had left."""
        stops = [self._engine.call(worker, "stop") for worker in self._posts]
        deadline = monotonic() + _STOP_SECONDS
        left = 0
        for future in stops:
            with suppress(Exception):
                left += future.result(max(deadline - monotonic(), 0.0))
        out = sum(post.asked == "report" for post in self._posts.values())
        with suppress(Empty):
            # A report that is still on its way bears segments, too.
            while out or not self._answers.empty():
                answer = self._answers.get(timeout=max(deadline - monotonic(), 0.0))
                if answer and answer[1] == "report":
                    out -= answer[0] in self._posts
                    left += 0 if answer[2].exception() else len(answer[2].result().segments)
        with self._state:
            self._ledger.refuse(left, ENDED)
        self._engine.close()
