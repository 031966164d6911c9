"""Which workers of a trainer are let in before RPC begins, over the master's store.

Both agree first (`distrlcc.parallel.admission`); a worker then takes its slot with a proof of its
own that it knows the secret, and the trainer says which slots are members. Only members open RPC,
which runs any code that one sends.
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
from distrlcc.parallel.admission import TOKEN, agree, missing, own_token, proof, proves, receive
from distrlcc.parallel.interface import Interface, interface_towards, resolve
from distrlcc.parallel.place import Place
from distrlcc.parallel.store import connect, master_needed

_CONFIRM_SECONDS = 10.0
"""Time that workers have to show that they still live, once enough have come."""
_ALIVE_SECONDS = 2.0
"""A worker that shows no life for this long loses its slot to another."""
_SAY_SECONDS = 5.0
"""Time after which the user is told which workers are awaited; processes start within it."""
_DECIDE_SECONDS = 30.0
"""Time that the trainer has to name the members, after the join timeout."""


@dataclass(frozen=True)
class Admission:
    """What a member learned."""

    interface: Interface
    rank: int
    """Rank in the RPC group; 0 is the trainer."""
    workers: list[Worker]
    """The workers that were let in, by rank from 1."""
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
                f"{address} is a public address, and anyone who reaches RPC's ports can run code "
                "here: use a private network or a VPN, or give --allow-public"
            )
    return interface


def admit(place: Place, interface: Interface, identity: Mapping[str, str]) -> Admission:
    """Wait as the trainer until all workers have come, and name the members.

    Args:
        place: The trainer's; ``size`` is that of the planned group.
        interface: This machine's.
        identity: What all members must have in common.

    Raises:
        GroupError: No worker came in time.
    """
    prefix, patience = f"{place.attempt}/", place.join_seconds
    slots = {f"{prefix}slot/{slot}": slot for slot in range(1, place.size)}
    members: dict[int, Worker] = {}
    with master_needed(place):
        store = connect(place, interface, patience)
        nonce = agree(store, place, identity)
        # Wait until all have taken their slots.
        begin = monotonic()
        late = missing(store, slots, begin + min(_SAY_SECONDS, patience))
        if late and patience > _SAY_SECONDS:
            where = f"{place.address}:{place.port}"
            _warn(f"waiting at {where} for {_names(slots, late)}, at most {patience:.0f} s")
            late = missing(store, slots, begin + patience)
        if late:
            _warn(f"{_names(slots, late)} did not come within {patience:.0f} s; going on without")
        # A worker that came and died meanwhile would keep RPC from beginning.
        store.set(f"{prefix}asked", "")
        came = [key for key in slots if key not in late]
        gone = missing(store, [f"{key}/here" for key in came], monotonic() + _CONFIRM_SECONDS)
        for key in came:
            claim, slot = json.loads(store.get(key)), slots[key]
            worker = Worker(slot - 1, claim["host"], claim["process"])
            if f"{key}/here" in gone:
                _warn(f"{worker} came, but is gone; going on without")
            elif not proves(claim["token"], nonce, str(slot), own_token()):
                _warn(f"{worker} is refused: it has another {TOKEN}")
            else:
                members[slot] = worker
        store.set(f"{prefix}members", json.dumps(list(members)))
    if not members:
        raise GroupError(
            f"no worker came within {patience:.0f} s; start the other nodes, or give a longer "
            "--join-timeout"
        )
    return Admission(interface, 0, list(members.values()), store)


def join(place: Place, interface: Interface, identity: Mapping[str, str]) -> Admission:
    """Come as a worker, and wait for the trainer's decision.

    Args:
        place: This worker's.
        interface: This machine's.
        identity: Compared with the trainer's.

    Raises:
        GroupError: There is no trainer, this worker does not match it, or it is refused.
    """
    prefix, name, slot = f"{place.attempt}/", f"worker {place.slot - 1}", str(place.slot)
    where, key = f"{place.address}:{place.port}", f"{prefix}slot/{slot}"
    with master_needed(place):
        store = connect(place, interface, place.join_seconds)
        nonce = agree(store, place, identity)
        if store.check([f"{prefix}members"]):
            raise GroupError(
                f"the run at {where} has begun; over torch RPC no worker can join it any more",
                exit_code=2,
            )
        # Take the slot, and show life until the trainer asks which workers are still here.
        own = {"host": interface.address, "process": os.getpid(), "name": uuid.uuid4().hex}
        own["token"] = proof(nonce, slot, own_token())
        holder = _take_slot(store, key, json.dumps(own))
        if holder["name"] != own["name"]:
            raise GroupError(
                f"{name} has come already (process {holder['process']} on {holder['host']}); give "
                "each machine its own --node-index",
                exit_code=2,
            )
        receive(store, place, f"{prefix}asked", extra=_DECIDE_SECONDS, alive=f"{key}/alive")
        store.set(f"{key}/here", "")
        members = json.loads(receive(store, place, f"{prefix}members", extra=_DECIDE_SECONDS))
    if place.slot not in members:
        raise GroupError(
            f"the trainer refused {name}: it came too late, or has another {TOKEN}", exit_code=2
        )
    workers = [Worker(member - 1, "", 0) for member in members]
    return Admission(interface, members.index(place.slot) + 1, workers, store)


def _take_slot(store: Any, key: str, own: str) -> dict[str, Any]:
    """Take a slot that is free or whose holder shows no life; return its holder's claim."""
    holder = store.compare_set(key, "", own).decode()
    if holder != own:
        before = store.add(f"{key}/alive", 0)
        sleep(_ALIVE_SECONDS)
        if store.add(f"{key}/alive", 0) == before:
            holder = store.compare_set(key, holder, own).decode()
    claim: dict[str, Any] = json.loads(holder)
    return claim


def _names(slots: Mapping[str, int], keys: list[str]) -> str:
    workers = ", ".join(str(slots[key] - 1) for key in keys)
    return f"worker{'s' if len(keys) > 1 else ''} {workers}"


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)
