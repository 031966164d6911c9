"""The engine on torch RPC (TensorPipe): a static group, whose members may only leave.

RPC is pickle without authentication: all ports are on loopback, and other machines' members come
through `distrlcc.parallel.tunnel`. A worker that was started again has no name here.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import rpc

from distrlcc.actors.admission import Admission
from distrlcc.actors.engine import ActorError, Changes, Holder, Worker, WorkerGoneError
from distrlcc.errors import GroupError
from distrlcc.limits import begin, limits
from distrlcc.net.emulator.namespace import on_loopback
from distrlcc.parallel.gate import Gate, TunnelStore
from distrlcc.parallel.interface import LOOPBACK, interface_towards
from distrlcc.parallel.store import PrefixStore
from distrlcc.runs.options import RankSpec

if not rpc.is_available():
    raise ImportError("torch has no RPC")
_THREADS = 4
_SCHEME = "distrlcc"


def _open_rpc(spec: RankSpec, admission: Admission) -> None:
    """Join the RPC group of the admitted members, on the spec's interface; GroupError: too few."""
    # Name the group's interface, and its store: no member opens another.
    rank, seconds, gate = admission.rank, limits().join, None
    size, store = len(admission.workers) + 1, admission.store
    interface = interface_towards(spec.address, spec.interface)
    inside = interface_towards(LOOPBACK) if spec.gate else interface
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = inside.name
    if spec.gate:
        gate = Gate(spec.gate)  # open as long as this process lives
        store = TunnelStore(store, gate)
    _store.append(PrefixStore(f"{spec.team}/rpc", store))
    # Join the group, at most for a while.
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=_THREADS,
        rpc_timeout=seconds,
        init_method=f"{_SCHEME}://",
        _transports=["uv"],  # on the interface, on one machine too
        _channels=[],  # tensors' own connections; we send none, and no tunnel would know them
    )
    more = {"rank": rank, "world_size": size, "rpc_backend_options": options}
    # Torch waits forever for a member that has just died, and cannot be interrupted.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a Backend used as a ProcessGroup: torch's own
        joined = begin(lambda: on_loopback(rpc.init_rpc, f"member{rank}", **more))
        late = wait([joined], seconds).not_done
    if late or joined.exception():
        reason = f"not all came within {seconds:.0f} s"
        reason = reason if late else str(joined.exception()).splitlines()[0]
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
        """Join the group; raises GroupError if not all came in time."""
        _open_rpc(spec, admission)
        self._ranks = {worker: rank for rank, worker in enumerate(admission.workers, 1)}
        self._lock = threading.Lock()
        self._changes = Changes(joined=list(self._ranks))

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

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        """See `Engine`; none ever takes its place."""
        self._ranks.pop(worker, None)

    def close(self) -> None:
        """See `Engine`."""
        self._ranks.clear()
        _close_rpc()

    def _send(self, worker: Worker, function: Callable[..., Any], *args: Any) -> Future[Any]:
        promise: Future[Any] = Future()

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

        try:
            # The caller judges silence long before a call's own time limit.
            name, seconds = f"member{self._ranks[worker]}", limits().patience
            rpc.rpc_async(name, function, args=args, timeout=seconds).add_done_callback(answered)
        except KeyError:
            promise.set_exception(WorkerGoneError("gone"))
        except RuntimeError as error:
            self._lose(worker, promise, error)
        return promise

    def _lose(self, worker: Worker, promise: Future[Any], error: Exception) -> None:
        text = str(error).partition(" (this error originated")[0]  # in a file of torch's
        reason = f"connection lost ({text.splitlines()[0] if text else type(error).__name__})"
        with self._lock:
            if worker in self._ranks:
                self._changes.left.setdefault(worker, reason)
        promise.set_exception(WorkerGoneError(reason))


_holder = Holder()  # this worker's: RPC's functions need a global
_store: list[Any] = []  # where `rpc.init_rpc` meets the others, the last


def _meet(_: str) -> Iterator[tuple[Any, int, int]]:
    yield _store[-1], -1, -1  # init_rpc takes the store alone


_register: Any = dist.register_rendezvous_handler  # type: ignore[attr-defined]
_register(_SCHEME, _meet)


def _start(factory: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
    return _holder.start(factory, *args)


def _call(method: str, *args: Any) -> tuple[bool, Any]:
    return _holder.call(method, *args)


def hold_actor(spec: RankSpec, admission: Admission) -> int:
    """Hold as a worker the object that the trainer starts, until it is stopped; return 0."""
    _open_rpc(spec, admission)
    try:
        _holder.wait()
    finally:
        _close_rpc()
    return 0
