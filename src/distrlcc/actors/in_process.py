"""An engine whose workers are threads of this process: for tests, and to try an actor alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError


class InProcessEngine:
    """A `distrlcc.actors.engine.Engine`; its user says who comes, goes and freezes."""

    def __init__(self, count: int) -> None:
        """Begin with so many workers."""
        self._pools: dict[Worker, ThreadPoolExecutor] = {}
        self._objects: dict[Worker, Any] = {}
        self._frozen: set[Worker] = set()
        self._changes = Changes()
        self._lock = threading.RLock()
        self._lives = 0
        self.dropped: list[Worker] = []
        self.workers = [self.join(index) for index in range(count)]

    def join(self, index: int) -> Worker:
        """Let a worker come."""
        with self._lock:
            self._lives += 1
            worker = Worker(index, "here", self._lives)
            self._pools[worker] = ThreadPoolExecutor(4, thread_name_prefix=str(worker))
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

        def begin() -> None:
            self._objects[worker] = factory(*args)

        return self._run(worker, begin)

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """See `Engine`."""
        return self._run(worker, lambda: getattr(self._objects[worker], method)(*args))

    def changes(self) -> Changes:
        """See `Engine`."""
        with self._lock:
            seen, self._changes = self._changes, Changes()
        return seen

    def drop(self, worker: Worker) -> None:
        """See `Engine`."""
        self.dropped.append(worker)
        self._end(worker)

    def close(self) -> None:
        """See `Engine`."""
        for worker in list(self._pools):
            self._end(worker)

    def _end(self, worker: Worker) -> None:
        with self._lock:
            pool = self._pools.pop(worker, None)
            if pool is not None:
                pool.shutdown(wait=False)
            held = self._objects.pop(worker, None)
        if hasattr(held, "stop"):
            held.stop()

    def _run(self, worker: Worker, work: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        if worker in self._frozen:
            return answer

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                gone = worker not in self._pools
                text = f"{type(error).__name__}: {error}"
                answer.set_exception(WorkerGoneError("gone") if gone else ActorError(text))
            else:
                answer.set_result(result)

        with self._lock:
            pool = self._pools.get(worker)
            if pool is not None:
                pool.submit(run)
        if pool is None:
            answer.set_exception(WorkerGoneError("gone"))
        return answer
