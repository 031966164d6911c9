"""How trainer and workers find each other before RPC begins, and refuse who does not belong.

All through the master's store: each comes with its identity and the proof that it knows the shared
secret (`DISTRLCC_TOKEN`), the trainer says who is in, and only they open RPC, which would run any
code that a member sends.
"""

from __future__ import annotations

import ipaddress
import json
import os
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from distrlcc.actors.engine import Worker
from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.interface import Interface, interface_towards, resolve
from distrlcc.parallel.place import Place
from distrlcc.parallel.store import connect, master_needed
from distrlcc.parallel.token import TOKEN, own_token, proof, proves
from distrlcc.runs.identity import check_identity, from_json, to_json

_POLL_SECONDS = 0.05
_CONFIRM_SECONDS = 10.0
"""Time that those who came have to show that they are still there."""
_ALIVE_SECONDS = 2.0
"""Who shows no life for this long loses its slot to a newcomer."""
_TELL_SECONDS = 5.0
"""Time after which the user is told who is awaited; processes start within it."""
_DECIDE_SECONDS = 30.0
"""Time that the trainer has to say who is in, after the join timeout."""


@dataclass(frozen=True)
class Admission:
    """What a member learned."""

    interface: Interface
    rank: int
    """In the RPC group; 0 is the trainer."""
    workers: list[Worker]
    """By rank from 1."""
    store: Any


def check_addresses(place: Place, *, allow_public: bool) -> Interface:
    """Return the interface to use.

    Raises:
        ConfigError: It, or the master, has a public address and that was not allowed.
    """
    interface = interface_towards(place.address, place.interface)
    for address in (resolve(place.address), interface.address):
        if ipaddress.ip_address(address).is_global and not allow_public:
            raise ConfigError(
                f"{address} is a public address, and RPC lets whoever reaches it run code: use a "
                "private network or a VPN, or give --allow-public"
            )
    return interface


def admit(place: Place, interface: Interface, identity: Mapping[str, str]) -> Admission:
    """Wait as the trainer until all workers have come, and say who is in.

    Args:
        place: The trainer's; ``size`` is that of the planned group.
        interface: Of this machine.
        identity: What all must have in common.

    Raises:
        GroupError: No worker came in time.
    """
    with master_needed(place):
        store = connect(place.address, place.port, interface, place.join_seconds)
        prefix, nonce = f"{place.attempt}/", uuid.uuid4().hex
        store.set(f"{prefix}nonce", nonce)
        told = {**identity, "token": proof(nonce, "trainer", own_token())}
        store.set(f"{prefix}identity", to_json(told))
        slots = range(1, place.size)
        _wait_for_workers(store, prefix, place)
        members: dict[int, Worker] = {}
        missing = []
        for slot in slots:
            key = f"{prefix}came/{slot}"
            if not store.check([key]):
                missing.append(slot - 1)
                continue
            worker, refusal = _judge(identity, store.get(key), nonce, slot)
            if refusal:
                line = f"worker {slot - 1} on {worker.host} is refused: {refusal}"
                warnings.warn(line, stacklevel=2)
                store.set(f"{prefix}refused/{slot}", refusal)
                continue
            members[slot] = worker
        if missing:
            names = ", ".join(map(str, missing))
            warnings.warn(
                f"worker{'s' if len(missing) > 1 else ''} {names} did not come within "
                f"{place.join_seconds:.0f} s; going on without",
                stacklevel=2,
            )
        # Whoever came and died meanwhile would keep RPC from beginning.
        store.set(f"{prefix}asked", "")
        deadline = monotonic() + _CONFIRM_SECONDS
        while not store.check([f"{prefix}here/{slot}" for slot in members]):
            if monotonic() > deadline:
                break
            sleep(_POLL_SECONDS)
        for slot in list(members):
            if not store.check([f"{prefix}here/{slot}"]):
                warnings.warn(
                    f"{members.pop(slot)} came, but is gone; going on without", stacklevel=2
                )
        store.set(f"{prefix}members", json.dumps(list(members)))
    if not members:
        raise GroupError(
            f"no worker came within {place.join_seconds:.0f} s; start the other nodes, or give a "
            "longer --join-timeout"
        )
    return Admission(interface, 0, list(members.values()), store)


def _wait_for_workers(store: Any, prefix: str, place: Place) -> None:
    """Wait until all workers have come or their time is up; say for whom."""
    keys = [f"{prefix}came/{slot}" for slot in range(1, place.size)]
    begun, told = monotonic(), False
    while not store.check(keys) and (waited := monotonic() - begun) < place.join_seconds:
        if waited > _TELL_SECONDS and not told:
            absent = [str(worker) for worker, key in enumerate(keys) if not store.check([key])]
            warnings.warn(
                f"waiting at {place.address}:{place.port} for worker"
                f"{'s' if len(absent) > 1 else ''} {', '.join(absent)}, at most "
                f"{place.join_seconds:.0f} s",
                stacklevel=2,
            )
            told = True
        sleep(_POLL_SECONDS)


def come(place: Place, interface: Interface, identity: Mapping[str, str]) -> Admission:
    """Come as a worker, and wait until the trainer says who is in.

    Raises:
        GroupError: The master is out of reach, this worker does not fit or has come already, or
            too late.
    """
    with master_needed(place):
        store = connect(place.address, place.port, interface, place.join_seconds)
        prefix, deadline = f"{place.attempt}/", monotonic() + place.join_seconds
        _wait(store, f"{prefix}identity", deadline, place)
        nonce = store.get(f"{prefix}nonce").decode()
        master = from_json(store.get(f"{prefix}identity"))
        if not proves(master.pop("token"), nonce, "trainer", own_token()):
            raise GroupError(
                f"the master at {place.address}:{place.port} has another {TOKEN} than this "
                "process; set the same one on every machine",
                exit_code=2,
            )
        check_identity(master, identity)
        if store.check([f"{prefix}members"]):
            raise GroupError(
                f"the run at {place.address}:{place.port} has begun; over torch RPC nobody can "
                "join it any more",
                exit_code=2,
            )
        own = f"{os.getpid()} {interface.address} {uuid.uuid4().hex}"
        holder = _take_slot(store, f"{prefix}slot/{place.slot}", own)
        if holder != own:
            process, where, _ = holder.split()
            raise GroupError(
                f"worker {place.slot - 1} has come already (process {process} on {where}); give "
                "each machine its own --node-index",
                exit_code=2,
            )
        told = {**identity, "token": proof(nonce, str(place.slot), own_token())}
        came = {"identity": told, "host": interface.address, "process": os.getpid()}
        store.set(f"{prefix}came/{place.slot}", json.dumps(came))
        deadline = monotonic() + place.join_seconds + _DECIDE_SECONDS
        _wait(store, f"{prefix}asked", deadline, place, alive=f"{prefix}slot/{place.slot}/alive")
        store.set(f"{prefix}here/{place.slot}", "")
        _wait(store, f"{prefix}members", deadline, place)
        members = json.loads(store.get(f"{prefix}members"))
        if place.slot not in members:
            key = f"{prefix}refused/{place.slot}"
            why = store.get(key).decode() if store.check([key]) else "it came too late"
            raise GroupError(f"the trainer refused worker {place.slot - 1}: {why}", exit_code=2)
    workers = [Worker(slot - 1, "", 0) for slot in members]
    return Admission(interface, members.index(place.slot) + 1, workers, store)


def _take_slot(store: Any, key: str, own: str) -> str:
    """Take a slot that is free or whose holder shows no life; return its holder."""
    holder = str(store.compare_set(key, "", own).decode())
    if holder == own:
        return own
    before = store.add(f"{key}/alive", 0)
    sleep(_ALIVE_SECONDS)
    if store.add(f"{key}/alive", 0) != before:
        return holder
    return str(store.compare_set(key, holder, own).decode())


def _wait(store: Any, key: str, deadline: float, place: Place, alive: str = "") -> None:
    """Wait for a key, and show life by counting another one up."""
    while not store.check([key]):
        if alive:
            store.add(alive, 1)
        if monotonic() > deadline:
            raise GroupError(
                f"the trainer at {place.address}:{place.port} did not say {key.split('/')[-1]!r} "
                f"within {place.join_seconds:.0f} s; is node 0 of an actor-learner run there?",
                exit_code=2,
            )
        sleep(_POLL_SECONDS)


def _judge(identity: Mapping[str, str], text: bytes, nonce: str, slot: int) -> tuple[Worker, str]:
    """Return a worker, and why it does not belong or nothing."""
    try:
        told = json.loads(text)
        worker = Worker(slot - 1, str(told["host"]), int(told["process"]))
        came = {str(name): str(value) for name, value in told["identity"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return Worker(slot - 1, "?", 0), "what it said of itself cannot be read"
    return worker, _refusal(identity, came, nonce, slot)


def _refusal(identity: Mapping[str, str], came: dict[str, str], nonce: str, slot: int) -> str:
    """Return why a worker does not belong, or nothing."""
    if not proves(came.pop("token", ""), nonce, str(slot), own_token()):
        return f"it has another {TOKEN}"
    try:
        check_identity(identity, came)
    except GroupError as error:
        return str(error)
    return ""
