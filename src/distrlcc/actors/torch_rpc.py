"""The engine on torch RPC (TensorPipe): a static group, whose members may only leave.

RPC is pickle without authentication: whoever reaches a worker's port can run code there. So all
ports are opened on one interface, and members have shown each other that they belong together
before it begins; see `distrlcc.actors.rendezvous`. A worker that was started again cannot
be reached under its old name, nor can a new one join: the Ray engine is for that.
"""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any

from torch.distributed import rpc

from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError
from distrlcc.errors import GroupError
from distrlcc.parallel.interface import Interface
from distrlcc.parallel.place import Place

_TRAINER = "trainer"
_JOIN_SECONDS = 30.0
_START_SECONDS = 60.0
_CALL_SECONDS = 3600.0
"""Far beyond what a caller waits: silence is judged by the caller."""
_THREADS = 4


def open_rpc(place: Place, interface: Interface, rank: int, size: int) -> None:
    """Join the RPC group of the trainer (rank 0) and workers.

    Args:
        place: Says where the master's store is.
        interface: All ports are opened on it.
        rank: Of the members that were let in; 0 is the trainer.
        size: Members.

    Raises:
        GroupError: Not all came in time.
    """
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = interface.name
    # The master's store is there already, as with torchrun: nobody opens another.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(place.attempt)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = place.address, str(place.port)
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=_THREADS,
        rpc_timeout=_JOIN_SECONDS,
        init_method="env://",
        _transports=["uv"],  # on the interface, on one machine too
        _channels=["basic"],
    )
    name = f"worker{rank}" if rank else _TRAINER
    failures: list[str] = []

    def join() -> None:
        try:
            rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)
        except RuntimeError as error:
            failures.append(str(error).splitlines()[0])

    # Torch waits for a member that died just now for ever, and cannot be interrupted.
    thread = threading.Thread(target=join, name="joining RPC", daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a Backend used as a ProcessGroup: torch's own
        thread.start()
        thread.join(_JOIN_SECONDS)
    if thread.is_alive() or failures:
        reason = failures[0] if failures else f"not all came within {_JOIN_SECONDS:.0f} s"
        raise GroupError(
            f"the RPC group of {size} could not be formed over {interface}: {reason}; start the "
            "nodes again"
        )


def close_rpc() -> None:
    """Leave the group without waiting for anyone."""
    with suppress(RuntimeError):
        rpc.shutdown(graceful=False)


class TorchRpcEngine:
    """A `distrlcc.actors.engine.Engine`; the trainer's side of the group."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        """Take the group's workers, in the order of their ranks from 1."""
        self._names = {worker: f"worker{rank}" for rank, worker in enumerate(workers, 1)}
        self._lock = threading.Lock()
        self._changes = Changes(joined=list(workers))

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """See `Engine`."""
        return self._send(worker, _start, factory, *args)

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """See `Engine`."""
        return self._send(worker, _call, method, *args)

    def changes(self) -> Changes:
        """See `Engine`."""
        with self._lock:
            seen, self._changes = self._changes, Changes()
        return seen

    def drop(self, worker: Worker) -> None:
        """See `Engine`."""
        self._names.pop(worker, None)

    def close(self) -> None:
        """See `Engine`."""
        self._names.clear()
        close_rpc()

    def _send(self, worker: Worker, function: Callable[..., Any], *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        name = self._names.get(worker)
        if name is None:
            answer.set_exception(WorkerGoneError("gone"))
            return answer
        try:
            sent = rpc.rpc_async(name, function, args=args, timeout=_CALL_SECONDS)
        except RuntimeError as error:
            self._lose(worker, answer, error)
            return answer

        def answered(future: Any) -> None:
            try:
                failed, value = future.value()
            except Exception as error:
                self._lose(worker, answer, error)
                return
            if failed:
                answer.set_exception(ActorError(value))
            else:
                answer.set_result(value)

        sent.add_done_callback(answered)
        return answer

    def _lose(self, worker: Worker, answer: Future[Any], error: Exception) -> None:
        text = str(error).partition(" (this error originated")[0]  # in a file of torch's
        reason = f"connection lost ({text.splitlines()[0] if text else type(error).__name__})"
        with self._lock:
            if worker in self._names:
                self._changes.left.setdefault(worker, reason)
        answer.set_exception(WorkerGoneError(reason))


class Host:
    """A worker's side: holds the object that the trainer started."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.object: Any = None
        self.heard = monotonic()
        """When the trainer last called."""


host = Host()
"""This process's; RPC calls functions by name, so it is a global."""


def _start(factory: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
    def begin() -> None:
        host.heard += _START_SECONDS  # the trainer waits as well
        try:
            host.object = factory(*args)
        finally:
            host.heard = monotonic()

    return _answer(begin)


def _call(method: str, *args: Any) -> tuple[bool, Any]:
    return _answer(lambda: getattr(host.object, method)(*args))


def _answer(work: Callable[[], Any]) -> tuple[bool, Any]:
    """Return whether the work failed, and its result or its error."""
    host.heard = monotonic()
    try:
        return False, work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return True, f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"
