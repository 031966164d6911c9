"""The engine on Ray: workers are Ray actors, and come back.

Each slot from 0 to the most workers has at most one actor. An actor that died, or was given up, is
made anew; one for which the cluster has no room waits in Ray's queue until a machine joins. So a
machine that comes in mid-run is used at once, and one that goes costs its workers alone.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError
from distrlcc.cluster.ray_member import death
from distrlcc.cluster.ray_placement import Reservation
from distrlcc.cluster.session import require_ray
from distrlcc.errors import GroupError
from distrlcc.runs.identity import check_identity
from distrlcc.scheduling import switch_threads_often

_THREADS = 4
_AGAIN_SECONDS = 1.0
_MOST_AGAIN_SECONDS = 30.0
_FAILURES = 3
"""Actors in each slot that come to nothing before the first worker, until the run gives up."""


@dataclass(frozen=True)
class Introduction:
    """What a worker says first."""

    host: str
    process: int
    identity: dict[str, str]


class Host:
    """A Ray actor: holds the object that the trainer started."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._object: Any = None
        switch_threads_often()

    def introduce(self, config: Any, topology: str) -> Introduction:
        """Say who this is and what it runs."""
        from distrlcc.runs.identity import identity  # noqa: PLC0415 - here, not where it is sent

        address = require_ray().util.get_node_ip_address()
        return Introduction(address, os.getpid(), identity(config, topology=topology))

    def start(self, factory: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """Make ``factory(*args)`` the object."""

        def begin() -> None:
            self._object = factory(*args)

        return _answer(begin)

    def call(self, method: str, *args: Any) -> tuple[bool, Any]:
        """Call a method of the object."""
        return _answer(lambda: getattr(self._object, method)(*args))


def _answer(work: Callable[[], Any]) -> tuple[bool, Any]:
    """Return whether the work failed, and its result or its error."""
    try:
        return False, work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return True, f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"


@dataclass
class _Slot:
    """A place for a worker."""

    index: int
    actor: Any = None
    worker: Worker | None = None
    """Who introduced himself."""
    again: float = 0.0
    """When to make another actor."""
    started: bool = False
    """Whether he holds an object."""
    failures: int = 0
    """Actors that came to nothing, one after the other."""


class RayEngine:
    """A `distrlcc.actors.engine.Engine`; its calls come from one thread, Ray's answers do not."""

    def __init__(self, reservation: Reservation, config: Any, own: Mapping[str, str]) -> None:
        """Take where workers have room; they are made at the first `changes`.

        Args:
            reservation: Says how many workers there may be, and what each needs.
            config: The run's.
            own: The trainer's identity, which workers must share; see
                `distrlcc.runs.identity.identity`.
        """
        self._ray = require_ray()
        self._host = self._ray.remote(Host)
        self._reservation, self._config, self._own = reservation, config, dict(own)
        self._slots = [_Slot(index) for index in range(reservation.most_workers)]
        self._by_worker: dict[Worker, _Slot] = {}
        self._lock = threading.RLock()  # guards all of these
        self._changes = Changes()
        self._hopeless = ""
        """Why no worker will ever come, as far as is known."""
        self._ever = False
        """Whether one did."""
        self._doomed: list[Any] = []
        self._closed = False
        self._shared: tuple[Any, Any] = (None, None)

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """See `Engine`."""
        return self._send(worker, "start", factory, *args)

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """See `Engine`."""
        return self._send(worker, "call", method, *map(self._once, args))

    def changes(self) -> Changes:
        """See `Engine`.

        Raises:
            GroupError: Of all who came none runs what the trainer runs, or none ever comes.
        """
        self._kill_doomed()
        with self._lock:
            if self._hopeless and not self._ever:
                raise GroupError(self._hopeless, exit_code=2)
            now = monotonic()
            for slot in self._slots:
                if slot.actor is None and slot.again <= now and not self._closed:
                    self._make(slot)
            seen, self._changes = self._changes, Changes()
        return seen

    def drop(self, worker: Worker) -> None:
        """See `Engine`; another takes its place."""
        with self._lock:
            slot = self._by_worker.pop(worker, None)
            if slot is not None:
                slot.failures = 0 if slot.started else slot.failures + 1
                self._vacate(slot)
        self._kill_doomed()

    def close(self) -> None:
        """See `Engine`."""
        with self._lock:
            self._closed = True
            self._by_worker.clear()
            for slot in self._slots:
                self._vacate(slot)
        self._kill_doomed()

    def _make(self, slot: _Slot) -> None:
        options = self._reservation.worker_options(slot.index)
        actor = self._host.options(
            max_concurrency=_THREADS, max_restarts=0, max_task_retries=0, **options
        ).remote()  # fmt: skip
        slot.actor = actor
        answer = actor.introduce.remote(self._config, "actor-learner").future()
        answer.add_done_callback(lambda done: self._introduced(slot, actor, done))

    def _introduced(self, slot: _Slot, actor: Any, answer: Future[Any]) -> None:
        """Take in a worker, or see that it never came to be."""
        with self._lock:
            if slot.actor is not actor or self._closed:
                return
            try:
                introduction: Introduction = answer.result()
                check_identity(self._own, introduction.identity)
            except Exception as error:
                slot.failures += 1
                self._vacate(slot)
                refused = isinstance(error, GroupError)
                if refused or all(s.failures >= _FAILURES for s in self._slots if s.actor is None):
                    self._hopeless = self._reason(error)
                return
            self._ever = True
            worker = Worker(slot.index, introduction.host, introduction.process)
            slot.worker = worker
            self._by_worker[worker] = slot
            self._changes.joined.append(worker)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, GroupError):
            return str(error)
        lines = [line for line in str(error).splitlines() if line.strip()]
        last = lines[-1] if lines else type(error).__name__
        return f"a worker could not be started on the cluster: {last}"

    def _vacate(self, slot: _Slot) -> None:
        actor, slot.actor, slot.worker, slot.started = slot.actor, None, None, False
        wait = _AGAIN_SECONDS * 2.0 ** min(slot.failures, 5)
        slot.again = monotonic() + min(wait, _MOST_AGAIN_SECONDS)
        if actor is not None:
            self._doomed.append(actor)

    def _kill_doomed(self) -> None:
        """End what is of no use; never from Ray's own thread, which would wait for itself."""
        with self._lock:
            doomed, self._doomed = self._doomed, []
        for actor in doomed:
            with suppress(Exception):  # it is dead
                self._ray.kill(actor, no_restart=True)

    def _once(self, value: Any) -> Any:
        """Put what all workers are sent, such as weights, into the object store once."""
        if isinstance(value, int | float | str):
            return value
        if self._shared[0] is not value:
            self._shared = (value, self._ray.put(value))
        return self._shared[1]

    def _send(self, worker: Worker, function: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            slot = self._by_worker.get(worker)
            actor = None if slot is None else slot.actor
        if actor is None:
            answer.set_exception(WorkerGoneError("gone"))
            return answer

        def answered(future: Future[Any]) -> None:
            try:
                failed, value = future.result()
            except Exception as error:
                self._lose(worker, answer, error)
                return
            if failed:
                answer.set_exception(ActorError(value))
                return
            if function == "start" and slot is not None:
                slot.started = True
            answer.set_result(value)

        getattr(actor, function).remote(*args).future().add_done_callback(answered)
        return answer

    def _lose(self, worker: Worker, answer: Future[Any], error: Exception) -> None:
        reason = death(error)
        with self._lock:
            if worker in self._by_worker:
                self._changes.left.setdefault(worker, reason)
        answer.set_exception(WorkerGoneError(reason))
