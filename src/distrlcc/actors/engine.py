"""The seam between those who learn and the machines on which others act.

An engine knows workers: processes, wherever they are, that hold one object each. It starts that
object, calls it, hands back futures, and says who came and who is gone. Everything else, such as
what is called and who is given up for silence, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Worker:
    """A process that can hold an object; one that comes back is another worker."""

    index: int
    """Number among the planned workers, from 0."""
    host: str
    process: int
    """Process id there."""

    def __str__(self) -> str:
        return f"worker {self.index} (process {self.process} on {self.host})"


@dataclass
class Changes:
    """Who came and who is gone since the last question."""

    joined: list[Worker] = field(default_factory=list)
    left: dict[Worker, str] = field(default_factory=dict)
    """With the reason, as far as it is known."""


class WorkerGoneError(Exception):
    """The worker cannot be reached any more."""


class ActorError(Exception):
    """The object on the worker raised; the message says what."""


class Engine(Protocol):
    """Workers and their objects. Methods may be called from any one thread and do not block."""

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """Make ``factory(*args)`` the worker's object; both are importable or picklable."""
        ...

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """Call a method of the worker's object.

        The future raises `WorkerGoneError` or `ActorError`; of a frozen worker it may stay
        unanswered for ever.
        """
        ...

    def changes(self) -> Changes:
        """Return who came and who is gone since the last call; at first all are new."""
        ...

    def drop(self, worker: Worker) -> None:
        """Give a worker up: it is not called again, and its answers are not waited for."""
        ...

    def close(self) -> None:
        """Let go of all workers."""
        ...
