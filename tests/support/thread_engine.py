"""Workers that are threads of this process: an engine's baseline, and what tests drive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError, answer


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
