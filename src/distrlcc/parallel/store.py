"""The master's store: small values and counts that members share outside collectives."""

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from distrlcc.errors import DistrlccError, GroupError, NoGroupError
from distrlcc.limits import begin, limits, wait_until
from distrlcc.net.emulator.namespace import on_loopback
from distrlcc.parallel.admission import guard
from distrlcc.parallel.gate import Gate, Tunnel, not_a_master
from distrlcc.parallel.interface import LOOPBACK, interface_towards, is_loopback, listen, resolve
from distrlcc.parallel.membership import serve_lighthouse
from distrlcc.runs.options import RankSpec

_EPOCH = "epoch"
_MOST_DIGITS = 18
TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]
PrefixStore: Any = dist.PrefixStore  # type: ignore[attr-defined]


class Master:
    """Node 0's services on loopback: the store and the lighthouse."""

    def __init__(
        self, address: str, port: int, *, lighthouse: bool = True, token: str = ""
    ) -> None:
        """Listen; port 0 takes any. At an address that others reach only a tunnel does, by token.

        ConfigError: no such interface, or no fit token; GroupError: not our address, or a taken
        port.
        """
        # Serve the store on loopback, at the given port if that is where members look for it.
        own = resolve(address)
        alone = is_loopback(own)
        token = token if alone else guard(token, own)
        if alone:
            listener = on_loopback(listen, own, port)
        else:
            outside, listener = listen(own, port), on_loopback(listen, LOOPBACK, 0)
        host, number = listener.getsockname()
        more = {"wait_for_workers": False, "timeout": timedelta(seconds=limits().call)}
        more["master_listen_fd"] = listener.detach()
        self._store = on_loopback(TCPStore, host, number, is_master=True, **more)
        # Beside it serve the lighthouse, which the store names, and the tunnel that leads to both.
        services, self._lighthouse = {"store": number}, None
        if lighthouse:
            self._lighthouse = on_loopback(serve_lighthouse, host)
            services["lighthouse"] = int(self._lighthouse.address().rpartition(":")[2])
            self._store.set("lighthouse", f"{host}:{services['lighthouse']}")
        self.tunnel = None if alone else Tunnel(outside, token, services)
        self.address, self.port = own, self.tunnel.port if self.tunnel else number

    def begin(self, attempt: int) -> None:
        """Let the members of an attempt join."""
        self._store.set("attempt", str(attempt))

    def update(self, attempt: int) -> int:
        """Return the last update that rank 0 has recorded; -1 if none."""
        return number_in(self._store, f"{attempt}/recorded")

    def close(self) -> None:
        """Stop listening."""
        if self.tunnel is not None:
            self.tunnel.close()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()
        del self._store


def open_tunnel(spec: RankSpec, token: str) -> Tunnel | None:
    """Return this machine's tunnel to a master on another; None where that is on loopback.

    It has the master's port number if that is free here, so that a firewall opens one only. Raises
    ConfigError if there is no such interface or route, or the token is missing or too short.
    """
    own = interface_towards(spec.address, spec.interface).address
    if is_loopback(own):
        return None
    token = guard(token, spec.address)
    try:
        return Tunnel(listen(own, spec.port), token, {})
    except GroupError:
        return Tunnel(listen(own, 0), token, {})


def reach(spec: RankSpec, service: str, wait: float) -> tuple[str, int]:
    """Return where a service of the master is reached from here; try for ``wait`` seconds.

    Without a tunnel the service is the store. Raises ConfigError if there is no such interface or
    route; GroupError if nothing listens there, the token differs, or this machine's tunnel is gone.
    """
    interface, begin = interface_towards(spec.address, spec.interface), time.monotonic()
    address = resolve(spec.address)  # once, as the system's resolver knows no limit
    while True:
        try:
            if spec.gate:
                with Gate(spec.gate) as gate:
                    return LOOPBACK, gate.way(f"{spec.address}:{spec.port}", service)
            place, own = (address, spec.port), (interface.address, 0)
            on_loopback(socket.create_connection, place, limits().call, own).close()
            return place
        except OSError as error:
            waited = time.monotonic() - begin
            if waited > wait:
                raise NoGroupError(
                    f"the master at {spec.address}:{spec.port} cannot be reached over {interface}: "
                    f"{error.strerror or error} for {waited:.0f} s; start node 0 first, and check "
                    "--ip, --port and --interface"
                ) from None
            time.sleep(limits().tick)


@contextmanager
def master_needed(spec: RankSpec) -> Iterator[None]:
    """Turn the failure of a call to the store into one line; GroupError: the master went away."""
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one
        raise NoGroupError(
            f"the master at {spec.address}:{spec.port} went away ({str(error).splitlines()[0]})"
        ) from None


def connect(spec: RankSpec, wait: float) -> Any:
    """Return a client of the master's store; raises as `reach`, or GroupError: it is none."""
    address, port = reach(spec, "store", wait)
    try:
        return open_store(address, port, limits().call)
    except RuntimeError as error:
        raise NoGroupError(not_a_master(f"{spec.address}:{spec.port}", str(error))) from None


def open_store(address: str, port: int, seconds: float, *, serves: bool = False) -> Any:
    """Return a store's client, or its server, whose calls wait for some s; raises RuntimeError."""
    # Open it in a thread: a server of another kind may let torch wait forever.
    before = sockets_to(port)
    more = {"wait_for_workers": False, "timeout": timedelta(seconds=seconds)}
    opened = begin(lambda: on_loopback(TCPStore, address, port, is_master=serves, **more))
    try:
        return opened.result(seconds + limits().call)
    except TimeoutError:
        # A thread that is still in torch would abort this process at its end.
        for number in sockets_to(port) - before:
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as line:
                line.shutdown(socket.SHUT_RDWR)
        wait([opened], limits().call)
        waited = seconds + limits().call
        raise RuntimeError(f"or it stands still: no answer for {waited:g} s") from None


def sockets_to(port: int) -> set[int]:
    """Return this process's descriptors of connections to a port."""
    found = set()
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # it is closed by now, or not connected
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as line:
                if line.getpeername()[1:2] == (port,):  # of a Unix socket it is a string
                    found.add(number)
    return found


def wait_for_attempt(spec: RankSpec, least: int) -> int:
    """Return a run's attempt once it is at least ``least``; raises GroupError if that fails."""
    store = connect(spec, spec.join_seconds)
    with master_needed(spec):
        if wait_until(lambda: number_in(store, "attempt") >= least, spec.join_seconds):
            return number_in(store, "attempt")
    raise GroupError(
        f"the master at {spec.address}:{spec.port} did not start the run again within "
        f"{spec.join_seconds:.0f} s"
    )


def raise_to(store: Any, epoch: int) -> int:
    """Raise the leader's epoch to ``epoch`` if that is higher; return the current epoch."""
    while (found := max(_number(there := _text(store, _EPOCH)), 0)) < epoch:
        try:
            expected = there.decode()
        except UnicodeDecodeError:  # no leader wrote that
            store.delete_key(_EPOCH)
            expected = ""
        # Only in the place of what was read: another may have raised it since.
        store.compare_set(_EPOCH, expected, str(epoch))
    return found


def note_end(store: Any, attempt: int, epoch: int) -> None:
    """Note in the store that an attempt has ended, as the one that leads it."""
    store.set(f"{attempt}/finished", str(epoch))


def has_ended(store: Any, attempt: int) -> bool:
    """Say whether the one that leads has noted an attempt's end; of others it is not believed."""
    return 0 < number_in(store, _EPOCH) == number_in(store, f"{attempt}/finished")


def number_in(store: Any, key: str) -> int:
    """Return the whole number at a key; -1 if nothing is there, or something else."""
    return _number(_text(store, key))


def _text(store: Any, key: str) -> bytes:
    return bytes(store.get(key)) if store.check([key]) else b""


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else -1


class RunWatch:
    """A launcher's thread that asks the master now and then whether the run is over."""

    def __init__(self, spec: RankSpec, *, bound: bool) -> None:
        """Enter the context to begin; a run that is ``bound`` to its master ends with it."""
        self.over = threading.Event()
        """Set once the run has ended, was started again, or its master is gone for good."""
        self.lost = False  # whether a bound run is over because its master is gone
        self.answered = self.heard = time.monotonic()
        """When the master last answered; on node 0, when another machine's watch last asked."""
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(spec, bound), daemon=True)

    def __enter__(self) -> "RunWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(limits().kill)  # at the interpreter's end torch would abort in a thread

    def _watch(self, spec: RankSpec, bound: bool) -> None:
        asked = 0
        # The ranks of an elastic run may come back before that, or give up first. Node 0's own
        # launcher serves the master, so it is never gone there.
        gone, serves = limits().absence if bound else 2 * limits().absence, spec.slot == 0
        while not (self._left.wait(limits().retry) or self.over.is_set()):
            try:
                # A new connection each time: one that was cut recovers late.
                store = connect(spec, 0.0)
                others = store.add(f"{spec.attempt}/watched", 0 if serves else 1)
                ended = has_ended(store, spec.attempt)
                if ended or number_in(store, "attempt") > spec.attempt:
                    self.over.set()
            except (DistrlccError, RuntimeError) as error:
                refused = isinstance(error.__context__, ConnectionRefusedError)
                late = time.monotonic() - self.answered > gone
                if not serves and (late or (refused and bound)):
                    self.lost = bound
                    self.over.set()
            else:
                self.answered = time.monotonic()
                if others > asked:
                    asked, self.heard = others, self.answered
