"""The master's store: small values and counts that members tell each other outside collectives."""

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
from distrlcc.parallel.place import Place

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
        """Return the last update that rank 0 told of; -1 if none."""
        key = f"{attempt}/update"
        return int(self._store.get(key)) if self._store.check([key]) else -1

    def close(self) -> None:
        """Stop listening."""
        if self._lighthouse is not None:
            self._lighthouse.close()
        del self._store


@contextmanager
def master_needed(place: Place) -> Iterator[None]:
    """Turn the failure of a call to the store into one line.

    Raises:
        GroupError: The master went away.
    """
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one
        raise GroupError(
            f"the master at {place.address}:{place.port} went away ({str(error).splitlines()[0]})",
            exit_code=2,
        ) from None


def connect(place: Place, interface: Interface, wait: float) -> Any:
    """Return a client of the master's store, once something listens there.

    Args:
        place: Says where the master is.
        interface: Where to leave from.
        wait: How long to try, s.

    Raises:
        GroupError: Nothing does, or not a store.
    """
    # Wait until something listens there.
    address, port, begin = place.address, place.port, time.monotonic()
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


def wait_for_attempt(place: Place, least: int) -> int:
    """Return the number of the attempt that a run is at, once it is at least ``least``.

    Raises:
        GroupError: The master is out of reach, or no such attempt begins in time.
    """
    interface = interface_towards(place.address, place.interface)
    store = connect(place, interface, place.join_seconds)
    deadline = time.monotonic() + place.join_seconds
    with master_needed(place):
        while time.monotonic() < deadline:
            attempt = int(store.get("attempt")) if store.check(["attempt"]) else -1
            if attempt >= least:
                return attempt
            time.sleep(0.1)
    raise GroupError(
        f"the master at {place.address}:{place.port} did not start the run again within "
        f"{place.join_seconds:.0f} s"
    )


class RunWatch:
    """Asks the master now and then, from another machine's launcher, whether the run is over."""

    def __init__(self, place: Place, *, idle: bool, bound: bool) -> None:
        """Enter the context to begin.

        Args:
            place: Says where the master is, and which attempt the run is at.
            idle: Ask nothing, as on the master's machine.
            bound: The run ends with its master: once nobody listens there, it is over.
        """
        self.over = threading.Event()
        """Set once the run has ended, was started again, or its master is gone for good."""
        self.lost = False
        """Whether a run that is bound to its master is over because that is gone."""
        self._stop = threading.Event()
        self._place, self._idle, self._bound = place, idle, bound
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
        place, heard = self._place, time.monotonic()
        interface = interface_towards(place.address, place.interface)
        every, gone = _WATCH_SECONDS, _GONE_SECONDS
        if self._bound:
            every, gone = _BOUND_WATCH_SECONDS, _BOUND_GONE_SECONDS
        while not self._stop.wait(every):
            try:
                store = connect(place, interface, 0.0)
                ended = store.check([f"{place.attempt}/finished"])
                again = int(store.get("attempt")) > place.attempt
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
