"""The seam between a learner and workers: processes, anywhere, that hold one object each.

An engine starts it, calls it, and says who joined and left; the caller drops silent workers.
"""

import os
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Protocol

from distrlcc.errors import GroupError
from distrlcc.limits import limits


@dataclass(frozen=True)
class Worker:
    """A process that can hold an object; one that was started again is another worker."""

    index: int  # number among the planned workers, from 0
    host: str
    process: int  # process id there

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

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """Call a method; the future may never end, or raises WorkerGoneError or ActorError."""

    def changes(self) -> Changes:
        """Return which workers joined and left since the last call; at first all are new."""

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        """Call a worker no more; with ``again`` another worker may take its place."""

    def close(self) -> None:
        """Drop all workers."""


class Holder:
    """A worker's place for the object that the trainer starts and calls."""

    def __init__(self) -> None:
        self.object: Any = None
        self.problem = ""  # why no more calls can come
        self._heard = monotonic()

    def start(self, factory: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """Make ``factory(*args)`` the object; see `answer`."""
        self._heard = monotonic() + limits().start  # the trainer waits as well
        started = answer(lambda: setattr(self, "object", factory(*args)))
        self._heard = monotonic()
        return started

    def call(self, method: str, *args: Any) -> tuple[bool, Any]:
        """Call a method of the object; see `answer`."""
        self._heard = monotonic()
        return answer(lambda: getattr(self.object, method)(*args))

    def wait(self) -> None:
        """Wait until the object is stopped; GroupError: a trainer silent or out of protocol."""
        # When a signal came; the trainer may have heard it and end this worker itself.
        asked: list[float] = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(monotonic()))
        self._heard, silence = max(self._heard, monotonic()), limits().stall
        while self.object is None or not self.object.stopped:
            sleep(limits().tick)
            if asked and monotonic() - asked[0] > limits().kill / 2:  # before it is killed
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            if self.problem:
                raise GroupError(self.problem)
            if monotonic() - self._heard > silence:
                raise GroupError(
                    f"the trainer has been silent for {silence:.0f} s; it is gone, or has dropped "
                    "this worker"
                )
        sleep(limits().tick)  # the answer is on its way
