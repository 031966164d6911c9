"""The place that torchrun's environment names."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

from distrlcc.errors import GroupError
from distrlcc.parallel.interface import interface_towards
from distrlcc.parallel.place import Place
from distrlcc.parallel.store import Master, TCPStore

_MASTER = "distrlcc/master"
_STARTS = "distrlcc/starts"


def torchrun_place(
    *, device: str, interface: str, join_seconds: float, timeout_seconds: float
) -> tuple[Place, Master | None]:
    """Return this rank's place; on rank 0 with the master that it serves.

    The master's address is handed on through torchrun's own store. A store outlives a restart, and
    agents count restarts differently, so rank 0 counts them there, and the others try addresses
    until one answers: that of the attempt before belongs to a process that is gone.

    Raises:
        ConfigError: There is no such interface, or no route.
        GroupError: torchrun's store or rank 0 does not answer.
    """
    environment = os.environ
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    slot, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address,
            port,
            is_master=slot == 0 and not shared,
            wait_for_workers=False,
            timeout=timedelta(seconds=join_seconds),
        )
        master = None
        if slot == 0:
            attempt = int(store.add(_STARTS, 1)) - 1
            master = Master(interface_towards(address, interface).address, 0)
            master.begin(attempt)
            store.set(_MASTER, f"{attempt}/{master.address}:{master.port}")
            host, number = master.address, master.port
        else:
            deadline = time.monotonic() + join_seconds
            while True:
                text = store.get(_MASTER).decode()
                attempt, (host, _, digits) = (
                    int(text.split("/")[0]),
                    text.split("/")[1].rpartition(":"),
                )
                number = int(digits)
                if _answers(host, number):
                    break
                if time.monotonic() > deadline:
                    raise GroupError(f"rank 0 at {host}:{number} does not answer", exit_code=2)
                time.sleep(0.5)
    except RuntimeError as error:
        raise GroupError(
            f"torchrun's store at {address}:{port} does not answer ({str(error).splitlines()[0]})",
            exit_code=2,
        ) from None
    place = Place(
        address=host,
        port=number,
        slot=slot,
        size=size,
        device=device,
        elastic=False,
        interface=interface,
        attempt=attempt,
        join_seconds=join_seconds,
        timeout_seconds=timeout_seconds,
    )
    return place, master


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 2.0):
            return True
    except OSError:
        return False
