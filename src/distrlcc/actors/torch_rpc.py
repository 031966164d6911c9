"""The engine on torch RPC (TensorPipe): a static group, whose members may only leave.

RPC is pickle without authentication: whoever reaches a worker's port can run code there. So all
ports are opened on one interface, and members have shown each other that they belong together
before it begins; see `distrlcc.actors.admission`. A worker that was started again cannot be reached
under its old name, nor can a new one join: the Ray engine is for that.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from torch.distributed import rpc

from distrlcc.actors.admission import Admission
from distrlcc.actors.engine import ActorError, Changes, Worker, WorkerGoneError, answer
from distrlcc.actors.worker_pool import START_SECONDS
from distrlcc.errors import GroupError
from distrlcc.parallel.rank_spec import RankSpec

_TRAINER = "trainer"
_JOIN_SECONDS = 30.0
SILENT_TRAINER_SECONDS = 15.0
"""A worker that the trainer has not called for this long ends, s."""
_ASKED_SECONDS = 1.5
_TICK = 0.1
_CALL_SECONDS = 3600.0
"""Far beyond what a caller waits: silence is judged by the caller."""
_THREADS = 4


def _open_rpc(spec: RankSpec, admission: Admission) -> None:
    """Join the RPC group of the members that were let in, on the admission's interface only.

    Raises:
        GroupError: Not all came in time.
    """
    interface, rank = admission.interface, admission.rank
    size = len(admission.workers) + 1
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = interface.name
    # The master's store is there already, as with torchrun: no member opens another.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(spec.attempt)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = spec.address, str(spec.port)
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

    # Torch waits for a member that died just now forever, and cannot be interrupted.
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


def _close_rpc() -> None:
    """Leave the group without waiting for the others."""
    with suppress(RuntimeError):
        rpc.shutdown(graceful=False)


class TorchRpcEngine:
    """A `distrlcc.actors.engine.Engine`; the trainer's side of the group."""

    def __init__(self, spec: RankSpec, admission: Admission) -> None:
        """Join the group.

        Raises:
            GroupError: Not all came in time.
        """
        _open_rpc(spec, admission)
        workers = admission.workers
        self._names = {worker: f"worker{rank}" for rank, worker in enumerate(workers, 1)}
        self._lock = threading.Lock()
        self._changes = Changes(joined=workers.copy())

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
        _close_rpc()

    def _send(self, worker: Worker, function: Callable[..., Any], *args: Any) -> Future[Any]:
        promise: Future[Any] = Future()
        name = self._names.get(worker)
        if name is None:
            promise.set_exception(WorkerGoneError("gone"))
            return promise
        try:
            sent = rpc.rpc_async(name, function, args=args, timeout=_CALL_SECONDS)
        except RuntimeError as error:
            self._lose(worker, promise, error)
            return promise

        def answered(future: Any) -> None:
            try:
                failed, value = future.value()
            except Exception as error:
                self._lose(worker, promise, error)
                return
            if failed:
                promise.set_exception(ActorError(value))
            else:
                promise.set_result(value)

        sent.add_done_callback(answered)
        return promise

    def _lose(self, worker: Worker, promise: Future[Any], error: Exception) -> None:
        text = str(error).partition(" (this error originated")[0]  # in a file of torch's
        reason = f"connection lost ({text.splitlines()[0] if text else type(error).__name__})"
        with self._lock:
            if worker in self._names:
                self._changes.left.setdefault(worker, reason)
        promise.set_exception(WorkerGoneError(reason))


class _Host:
    """A worker's side: holds the object that the trainer started."""

    def __init__(self) -> None:
        self.object: Any = None
        self.heard = monotonic()
        """When the trainer last called."""


_host = _Host()
"""This process's; RPC calls functions by name, so it is a global."""


def _start(factory: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
    def begin() -> None:
        _host.heard += START_SECONDS  # the trainer waits as well
        try:
            _host.object = factory(*args)
        finally:
            _host.heard = monotonic()

    return _answer(begin)


def _call(method: str, *args: Any) -> tuple[bool, Any]:
    return _answer(lambda: getattr(_host.object, method)(*args))


def _answer(work: Callable[[], Any]) -> tuple[bool, Any]:
    _host.heard = monotonic()
    return answer(work)


def hold_actor(spec: RankSpec, admission: Admission) -> int:
    """Hold as a worker the object that the trainer starts, until that is stopped; return 0.

    Raises:
        GroupError: The trainer is silent.
    """
    _open_rpc(spec, admission)
    _host.heard = monotonic()
    asked: list[float] = []  # a signal came; the trainer may first want to count what is here
    signal.signal(signal.SIGTERM, lambda *_: asked.append(monotonic()))
    try:
        while _host.object is None or not _host.object.stopped:
            sleep(_TICK)
            if asked and monotonic() - asked[0] > _ASKED_SECONDS:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            if monotonic() - _host.heard > SILENT_TRAINER_SECONDS:
                raise GroupError(
                    f"the trainer has been silent for {SILENT_TRAINER_SECONDS:.0f} s; it is gone, "
                    "or has dropped this worker"
                )
        sleep(_TICK)  # the answer is on its way
    finally:
        _close_rpc()
    return 0
