"""The master's store: small values and counts that members share outside collectives."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.interface import Interface, interface_towards, resolve
from distrlcc.parallel.membership import Lighthouse
from distrlcc.parallel.rank_spec import RankSpec

TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]
STORE_SECONDS = 15.0
"""Time limit of one call, s."""
_LEAVE_SECONDS = 2.0
_WATCH_SECONDS, _GONE_SECONDS = 5.0, 90.0
_BOUND_WATCH_SECONDS, _BOUND_GONE_SECONDS = 1.0, 20.0
"""The same where the run ends with its master."""
LINGER_SECONDS = 2.0
"""Time that a master stays after its run, so that all hear how it ended, s."""


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
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((own, port))
            listener.listen(512)
        except OSError as error:
            listener.close()
            raise GroupError(
                f"cannot listen on {address}:{port} ({error.strerror}); --ip must be an address of "
                "node 0 and --port must be free there",
                exit_code=2,
            ) from None
        # Serve the store there, and beside it the lighthouse, which the store names.
        self.address, self.port = own, int(listener.getsockname()[1])
        self._store = TCPStore(
            own,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_SECONDS),
            master_listen_fd=listener.detach(),
        )
        self._lighthouse: Lighthouse | None = None
        if lighthouse:
            try:
                self._lighthouse = Lighthouse(own, port + 1 if port else 0)
            except GroupError:
                del self._store
                raise
            self._store.set("lighthouse", f"{own}:{self._lighthouse.port}")

    def begin(self, attempt: int) -> None:
        """Let the members of an attempt join."""
        self._store.set("attempt", str(attempt))

    def finished(self, attempt: int) -> bool:
        """Say whether the run has ended."""
        return bool(self._store.check([f"{attempt}/finished"]))

    def update(self, attempt: int) -> int:
        """Return the last update that rank 0 announced; -1 if none."""
        key = f"{attempt}/update"
        return int(self._store.get(key)) if self._store.check([key]) else -1

    def close(self) -> None:
        """Stop listening."""
        if self._lighthouse is not None:
            self._lighthouse.close()
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


def connect(spec: RankSpec, interface: Interface, wait: float) -> Any:
    """Return a client of the master's store, once something listens there; try ``wait`` seconds.

    Raises:
        GroupError: Nothing does, or not a store.
    """
    # Wait until something listens there.
    address, port, begin = spec.address, spec.port, time.monotonic()
    while True:
        try:
            with socket.create_connection((address, port), 2.0, (interface.address, 0)):
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
            time.sleep(0.25)
    # A server of another kind may let torch wait forever.
    opened: list[Any] = []
    thread = threading.Thread(target=_open_store, args=(address, port, opened), daemon=True)
    thread.start()
    thread.join(2 * STORE_SECONDS)
    if opened and not isinstance(opened[0], RuntimeError):
        return opened[0]
    reason = f" ({opened[0]})" if opened else ""
    raise GroupError(
        f"what listens at {address}:{port} is not a distrlcc master{reason}; give another --port",
        exit_code=2,
    )


def _open_store(address: str, port: int, opened: list[Any]) -> None:
    """Append a client of a store or an error; never returns where another kind of server is."""
    limit = timedelta(seconds=STORE_SECONDS)
    try:
        opened.append(
            TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
        )
    except RuntimeError as error:
        opened.append(error)


def wait_for_attempt(spec: RankSpec, least: int) -> int:
    """Return the number of the attempt that a run is at, once it is at least ``least``.

    Raises:
        GroupError: The master is out of reach, or no such attempt begins in time.
    """
    interface = interface_towards(spec.address, spec.interface)
    store = connect(spec, interface, spec.join_seconds)
    deadline = time.monotonic() + spec.join_seconds
    with master_needed(spec):
        while time.monotonic() < deadline:
            attempt = int(store.get("attempt")) if store.check(["attempt"]) else -1
            if attempt >= least:
                return attempt
            time.sleep(0.1)
    raise GroupError(
        f"the master at {spec.address}:{spec.port} did not start the run again within "
        f"{spec.join_seconds:.0f} s"
    )


class RunWatch:
    """Asks the master now and then, from another machine's launcher, whether the run is over."""

    def __init__(self, spec: RankSpec, *, idle: bool, bound: bool) -> None:
        """Enter the context to begin; ask nothing where ``idle``, as on the master's machine.

        A run that is ``bound`` to its master is over once nothing listens there.
        """
        self.over = threading.Event()
        """Set once the run has ended, was started again, or its master is gone for good."""
        self.lost = False
        """Whether a run that is bound to its master is over because that is gone."""
        self._stop = threading.Event()
        self._spec, self._idle, self._bound = spec, idle, bound
        self._thread = threading.Thread(target=self._ask, name="run watch", daemon=True)

    def __enter__(self) -> RunWatch:
        if not self._idle:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():  # the interpreter's end would abort a thread inside of torch
            self._thread.join(_LEAVE_SECONDS)

    def _ask(self) -> None:
        spec, heard = self._spec, time.monotonic()
        interface = interface_towards(spec.address, spec.interface)
        every, gone = _WATCH_SECONDS, _GONE_SECONDS
        if self._bound:
            every, gone = _BOUND_WATCH_SECONDS, _BOUND_GONE_SECONDS
        while not self._stop.wait(every):
            try:
                store = connect(spec, interface, 0.0)
                ended = store.check([f"{spec.attempt}/finished"])
                again = int(store.get("attempt")) > spec.attempt
            except (GroupError, RuntimeError) as error:
                refused = isinstance(error.__context__, ConnectionRefusedError)
                if (refused and self._bound) or time.monotonic() - heard > gone:
                    self.lost = self._bound
                    self.over.set()
                    return
            else:
                heard = time.monotonic()
                if ended or again:
                    self.over.set()
                    return
