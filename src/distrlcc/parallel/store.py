"""The master's store: small values and counts that members share outside collectives."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distrlcc.errors import ConfigError, DistrlccError, GroupError
from distrlcc.limits import limits
from distrlcc.parallel.interface import interface_towards, resolve
from distrlcc.parallel.membership import serve_lighthouse
from distrlcc.parallel.rank_spec import RankSpec

TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]


class Master:
    """What the launcher of node 0 serves: the store and the lighthouse, on one address only."""

    def __init__(self, address: str, port: int, *, lighthouse: bool = True) -> None:
        """Listen; port 0 takes any two ports, another takes it and, for a lighthouse, the next.

        Raises:
            ConfigError: The address is not this machine's.
            GroupError: A port is taken.
        """
        # Listen on one address of this machine.
        own = resolve(address)
        if own == "0.0.0.0":
            raise ConfigError(
                f"--ip {address}: expected one address of node 0, which the others can reach"
            )
        try:
            listener = socket.create_server((own, port), backlog=512)
        except OSError as error:
            raise GroupError(
                f"cannot listen on {address}:{port} ({os.strerror(error.errno or 0)}); --ip must "
                "be an address of node 0 and --port must be free there",
                exit_code=2,
            ) from None
        # Serve the store there, and beside it the lighthouse, which the store names.
        self.address, self.port = own, int(listener.getsockname()[1])
        self._store = TCPStore(
            own,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=limits().call),
            master_listen_fd=listener.detach(),
        )
        self._lighthouse: Any = None
        if lighthouse:
            try:
                self._lighthouse = serve_lighthouse(own, port + 1 if port else 0)
            except GroupError:
                del self._store
                raise
            self._store.set("lighthouse", f"{own}:{self._lighthouse.address().rpartition(':')[2]}")

    def begin(self, attempt: int) -> None:
        """Let the members of an attempt join."""
        self._store.set("attempt", str(attempt))

    def update(self, attempt: int) -> int:
        """Return the last update that rank 0 has recorded; -1 if none."""
        return _number(self._store, f"{attempt}/recorded")

    def close(self) -> None:
        """Stop listening."""
        if self._lighthouse is not None:
            self._lighthouse.shutdown()
        del self._store


@contextmanager
def master_needed(spec: RankSpec) -> Iterator[None]:
    """Turn the failure of a call to the store into one line.

    Raises:
        GroupError: The master went away.
    """
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one
        raise GroupError(
            f"the master at {spec.address}:{spec.port} went away ({str(error).splitlines()[0]})",
            exit_code=2,
        ) from None


def connect(spec: RankSpec, wait: float) -> Any:
    """Return a client of the master's store, once something listens there; try ``wait`` seconds.

    Raises:
        ConfigError: There is no such interface, or no route.
        GroupError: Nothing does, or not a store.
    """
    # Wait until something listens there.
    interface = interface_towards(spec.address, spec.interface)
    address, port, begin = spec.address, spec.port, time.monotonic()
    while True:
        try:
            with socket.create_connection((address, port), limits().call, (interface.address, 0)):
                break
        except OSError as error:
            waited = time.monotonic() - begin
            if waited > wait:
                raise GroupError(
                    f"the master at {address}:{port} cannot be reached over {interface}: "
                    f"{error.strerror or error} for {waited:.0f} s; start node 0 first, and check "
                    "--ip, --port and --interface",
                    exit_code=2,
                ) from None
            time.sleep(limits().tick)
    # Open the store in a thread: a server of another kind may let torch wait forever.
    opened: Future[Any] = Future()
    limit = timedelta(seconds=limits().call)

    def open_store() -> None:
        try:
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
            opened.set_result(store)
        except RuntimeError as error:
            opened.set_exception(error)

    threading.Thread(target=open_store, daemon=True).start()
    try:
        return opened.result(2 * limits().call)
    except (RuntimeError, TimeoutError) as error:
        reason = f" ({error})" if str(error) else ""
        raise GroupError(
            f"what listens at {address}:{port} is not a distrlcc master{reason}; give another "
            "--port",
            exit_code=2,
        ) from None


def wait_for_attempt(spec: RankSpec, least: int) -> int:
    """Return the number of the attempt that a run is at, once it is at least ``least``.

    Raises:
        GroupError: The master is out of reach, or no such attempt begins in time.
    """
    store = connect(spec, spec.join_seconds)
    deadline = time.monotonic() + spec.join_seconds
    with master_needed(spec):
        while time.monotonic() < deadline:
            if (attempt := _number(store, "attempt")) >= least:
                return attempt
            time.sleep(limits().tick)
    raise GroupError(
        f"the master at {spec.address}:{spec.port} did not start the run again within "
        f"{spec.join_seconds:.0f} s"
    )


def _number(store: Any, key: str) -> int:
    return int(store.get(key)) if store.check([key]) else -1


class RunWatch:
    """A launcher's thread that asks the master now and then whether the run is over."""

    def __init__(self, spec: RankSpec, *, bound: bool) -> None:
        """Enter the context to begin; a run that is ``bound`` to its master ends with it."""
        self.over = threading.Event()
        """Set once the run has ended, was started again, or its master is gone for good."""
        self.lost = False
        """Whether a bound run is over because its master is gone."""
        self.heard = time.monotonic()
        """On node 0, when another machine's watch last asked."""
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(spec, bound), daemon=True)

    def __enter__(self) -> RunWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(limits().kill)  # at the interpreter's end torch would abort in a thread

    def _watch(self, spec: RankSpec, bound: bool) -> None:
        asked, heard = 0, time.monotonic()
        # The ranks of an elastic run may come back before that, or give up first. Node 0's own
        # launcher serves the master, so it is never gone there.
        gone, serves = limits().absence if bound else 2 * limits().absence, spec.slot == 0
        while not (self._left.wait(limits().retry) or self.over.is_set()):
            try:
                # A new connection each time: one that was cut recovers late.
                store = connect(spec, 0.0)
                others = store.add(f"{spec.attempt}/watched", 0 if serves else 1)
                ended = store.check([f"{spec.attempt}/finished"])
                if ended or _number(store, "attempt") > spec.attempt:
                    self.over.set()
            except (DistrlccError, RuntimeError) as error:
                refused = isinstance(error.__context__, ConnectionRefusedError)
                late = time.monotonic() - heard > gone
                if not serves and (late or (refused and bound)):
                    self.lost = bound
                    self.over.set()
            else:
                heard = time.monotonic()
                if others > asked:
                    asked, self.heard = others, heard
