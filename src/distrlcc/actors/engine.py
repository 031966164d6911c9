"""The seam between a learner and the workers that act for it.

An engine has workers: processes, wherever they are, that hold one object each. It starts that
object, calls it, returns futures, and reports which workers joined and left. What is called, and
when a silent worker is dropped, is up to the caller. `InProcessEngine` is the one of threads.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Worker:
    """A process that can hold an object; one that was started again is another worker."""

    index: int
    """Number among the planned workers, from 0."""
    host: str
    process: int
    """Process id there."""

    def __str__(self) -> str:
        return f"worker {self.index} (process {self.process} on {self.host})"


@dataclass
class Changes:
    """Workers that joined and left since the last question."""

    joined: list[Worker] = field(default_factory=list)
    left: dict[Worker, str] = field(default_factory=dict)
    """Each with the reason, as far as it is known."""


class WorkerGoneError(Exception):
    """The worker cannot be reached any more; its engine's `Changes` say why."""


class ActorError(Exception):
    """The object on the worker raised; the message says what."""


def answer(work: Callable[[], Any]) -> tuple[bool, Any]:
    """Return, on a worker, whether the work failed, and its result or what its error says."""
    try:
        return False, work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return True, f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"


class Engine(Protocol):
    """Workers and their objects. Methods may be called from any one thread and do not block."""

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """Make ``factory(*args)`` the worker's object; both are importable or picklable."""
        ...

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """Call a method of the worker's object.

        The future raises `WorkerGoneError` or `ActorError`; of a frozen worker it may stay
        unanswered forever.
        """
        ...

    def changes(self) -> Changes:
        """Return which workers joined and left since the last call; at first all are new."""
        ...

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        """Do not call a worker again, nor wait for its answers.

        With ``again`` another worker may take its place.
        """
        ...

    def close(self) -> None:
        """Drop all workers."""
        ...


class InProcessEngine:
    """Workers are threads of this process, to try an actor alone and for tests.

    Its user says which workers join, leave and freeze.
    """

    def __init__(self, count: int) -> None:
        """Begin with so many workers."""
        self.objects: dict[Worker, Any] = {}
        """What each living worker holds."""
        self.dropped: list[Worker] = []
        self._threads: dict[Worker, ThreadPoolExecutor] = {}
        self._frozen: set[Worker] = set()
        self._changes = Changes()
        self._lock = threading.RLock()
        self._lives = 0
        self.workers = [self.join(index) for index in range(count)]

    def join(self, index: int) -> Worker:
        """Let a worker join."""
        with self._lock:
            self._lives += 1
            worker = Worker(index, "here", self._lives)
            self._threads[worker] = ThreadPoolExecutor(4, thread_name_prefix=str(worker))
            self._changes.joined.append(worker)
        return worker

    def leave(self, worker: Worker, reason: str = "was told to go") -> None:
        """Let a worker die: its calls fail from now on."""
        with self._lock:
            self._changes.left[worker] = reason
            self._end(worker)

    def freeze(self, worker: Worker) -> None:
        """Let a worker answer nothing any more."""
        self._frozen.add(worker)

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """See `Engine`."""
        return self._run(worker, lambda: self.objects.update({worker: factory(*args)}))

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """See `Engine`."""
        return self._run(worker, lambda: getattr(self.objects[worker], method)(*args))

    def changes(self) -> Changes:
        """See `Engine`."""
        with self._lock:
            seen, self._changes = self._changes, Changes()
        return seen

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        """See `Engine`; none ever takes its place."""
        self.dropped.append(worker)
        self._end(worker)

    def close(self) -> None:
        """See `Engine`."""
        for worker in list(self._threads):
            self._end(worker)

    def _end(self, worker: Worker) -> None:
        with self._lock:
            threads = self._threads.pop(worker, None)
            held = self.objects.pop(worker, None)
        if threads is not None:
            threads.shutdown(wait=False)
        if hasattr(held, "stop"):
            held.stop()

    def _run(self, worker: Worker, work: Callable[[], Any]) -> Future[Any]:
        def run() -> Any:
            failed, value = answer(work)
            if failed:
                raise ActorError(value) if worker in self._threads else WorkerGoneError("gone")
            return value

        promise: Future[Any] = Future()
        if worker not in self._frozen:
            try:
                return self._threads[worker].submit(run)
            except (KeyError, RuntimeError):  # it has left, just now perhaps
                promise.set_exception(WorkerGoneError("gone"))
        return promise
