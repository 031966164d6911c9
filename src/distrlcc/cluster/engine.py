"""The engine on Ray: workers are Ray actors, which Ray starts again when they die.

Each possible worker has an actor. Actors without room wait in Ray's queue until a machine joins,
which is then used at once; a machine that leaves costs only its own workers. An actor that is
dropped, for instance a frozen one, is killed and started again.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

from distrlcc.actors.engine import ActorError, Changes, Holder, Worker, WorkerGoneError
from distrlcc.cluster.placement import Reservation
from distrlcc.cluster.session import death, last_line, memory_kills, require_ray, why_gone
from distrlcc.errors import GroupError, NoGroupError
from distrlcc.limits import limits
from distrlcc.processes import switch_threads_often
from distrlcc.runs.identity import check_identity

TOPOLOGY = "actor-learner"
_THREADS = 4
_FAILURES = 3
"""Actors in each slot that come to nothing before the first worker, until the run gives up."""


class Host(Holder):
    """A Ray actor: holds the object that the trainer started."""

    def __init__(self) -> None:
        super().__init__()
        switch_threads_often()

    def introduce(self, config: Any) -> tuple[str, int, dict[str, str]]:
        """Return this machine's address, the process id, and what runs here."""
        from distrlcc.runs.identity import identity  # noqa: PLC0415 - here, not where it is sent

        address = require_ray().util.get_node_ip_address()
        return address, os.getpid(), identity(config, topology=TOPOLOGY)


@dataclass
class _Slot:
    """A place for a worker; its actor is asked to introduce itself, and then joined."""

    index: int
    actor: Any = None
    worker: Worker | None = None  # the last worker that this actor was
    joined: bool = False
    started: bool = False  # whether the worker holds an object
    failures: int = 0  # workers in a row that never held one
    again: float = 0.0  # when to ask the actor, or to make another; infinite once it is asked
    kills: int = 0  # how often Ray's memory monitor is known to have killed its actor
    doomed: bool = False
    """Whether to kill the process; Ray's own thread, which finds out, would block."""


class RayEngine:
    """A `distrlcc.actors.engine.Engine`; its calls come from one thread, Ray's answers do not."""

    def __init__(
        self, reservation: Reservation, config: Any, own: Mapping[str, str], learner: int = 0
    ) -> None:
        """Plan a learner's workers, which must share ``own``; the first `changes` makes them."""
        self._ray = require_ray()
        self._reservation, self._config, self._own = reservation, config, own
        indices = range(learner, len(reservation.workers), config.actors.learners)
        self._slots = {index: _Slot(index) for index in indices}
        self._lock = threading.RLock()  # guards all of these
        self._changes = Changes()
        self._hopeless = ""  # why no worker will ever join, as far as is known
        self._ever = self._closed = False
        self._looked = monotonic()
        self._shared: tuple[Any, Any] = (None, None)

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """See `Engine`."""
        return self._send(worker, "start", factory, *args)

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """See `Engine`."""
        return self._send(worker, "call", method, *map(self._once, args))

    def changes(self) -> Changes:
        """See `Engine`; GroupError: no worker runs the trainer's code, or none ever starts."""
        with self._lock:
            if self._hopeless and not self._ever:
                raise NoGroupError(self._hopeless)
            for slot in self._slots.values():
                if slot.doomed:
                    slot.doomed = False
                    self._kill(slot)
                if slot.again <= monotonic():
                    self._invite(slot)
            seen, self._changes = self._changes, Changes()
        for worker, why in seen.left.items():
            slot = self._slots[worker.index]
            seen.left[worker], slot.kills = why_gone(slot.actor, slot.kills, why)
        # Those that are killed whenever they start never say so themselves.
        if not self._ever and monotonic() > self._looked + limits().call:
            self._looked = monotonic()
            actors = [slot.actor for slot in self._slots.values() if slot.actor is not None]
            kills = [memory_kills(actor) for actor in actors]
            if kills and all(len(each) > _FAILURES for each in kills):
                raise NoGroupError(f"no worker could be started: each was {kills[0][-1]}")
        return seen

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        """See `Engine`; Ray starts another in its place."""
        with self._lock:
            slot = self._slot(worker)
            if slot is not None:
                self._leave(slot)
                if not again:
                    slot.again = inf
                self._kill(slot, restart=again)

    def close(self) -> None:
        """See `Engine`."""
        with self._lock:
            self._closed = True
            for slot in self._slots.values():
                slot.joined = False
                self._kill(slot, restart=False)

    def _slot(self, worker: Worker) -> _Slot | None:
        slot = self._slots[worker.index]
        return slot if slot.joined and slot.worker == worker else None

    def _invite(self, slot: _Slot) -> None:
        """Have an actor introduce itself; it answers when there is room for it."""
        if slot.actor is None:
            room = self._reservation.workers[slot.index]
            options = {"max_concurrency": _THREADS, "max_restarts": -1, **room}
            slot.actor = self._ray.remote(Host).options(**options).remote()
        slot.again = inf
        introduce = slot.actor.introduce.options(max_task_retries=-1)
        introduced = introduce.remote(self._config).future()
        introduced.add_done_callback(lambda done: self._introduced(slot, done))

    def _introduced(self, slot: _Slot, introduced: Future[Any]) -> None:
        """Let a worker join, or note why it does not."""
        with self._lock:
            if self._closed:
                return
            try:
                host, process, identity = introduced.result()
                check_identity(self._own, identity)
            except Exception as error:
                self._leave(slot)
                if isinstance(error, GroupError):
                    slot.doomed, self._hopeless = True, str(error)
                    return
                slot.actor = None  # Ray does not start it again
                if all(s.failures >= _FAILURES for s in self._slots.values() if not s.joined):
                    why = f"a worker could not be started on the cluster: {last_line(error)}"
                    self._hopeless = why
                return
            worker = Worker(slot.index, host, process)
            if worker == slot.worker:  # it was cut off, or is about to be killed
                slot.doomed = True
                slot.again = monotonic() + limits().retry
                return
            self._ever = slot.joined = True
            slot.worker = worker
            self._changes.joined.append(worker)

    def _leave(self, slot: _Slot) -> None:
        """Take a worker out; the next one is asked after a while, the longer the more failed."""
        slot.failures = 0 if slot.started else slot.failures + 1
        slot.joined = slot.started = False
        slot.again = monotonic() + limits().retry * 2.0 ** min(slot.failures, 5)

    def _kill(self, slot: _Slot, *, restart: bool = True) -> None:
        if slot.actor is not None:
            with suppress(Exception):  # it is dead
                self._ray.kill(slot.actor, no_restart=not restart)

    def _once(self, value: Any) -> Any:
        """Put what all workers are sent, such as weights, into the object store once."""
        if isinstance(value, int | float | str):
            return value
        if self._shared[0] is not value:
            self._shared = (value, self._ray.put(value))
        return self._shared[1]

    def _send(self, worker: Worker, function: str, *args: Any) -> Future[Any]:
        result: Future[Any] = Future()
        with self._lock:
            slot = self._slot(worker)
        if slot is None:
            result.set_exception(WorkerGoneError("gone"))
            return result

        def answered(future: Future[Any]) -> None:
            try:
                failed, value = future.result()
            except Exception as error:  # the worker died; Ray starts it again
                reason = death(error)
                with self._lock:
                    if self._slot(worker) is not None:
                        self._changes.left.setdefault(worker, reason)
                        self._leave(slot)
                result.set_exception(WorkerGoneError(reason))
                return
            if failed:
                result.set_exception(ActorError(value))
                return
            slot.started = slot.started or function == "start"
            result.set_result(value)

        getattr(slot.actor, function).remote(*args).future().add_done_callback(answered)
        return result
