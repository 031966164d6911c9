"""Which workers of a learner are admitted before it calls any, over the master's store.

After the handshake a worker claims its slot, and the learner names the members.
"""

import json
import os
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any

import msgspec

from distrlcc.actors.engine import Worker
from distrlcc.errors import GroupError, NoGroupError
from distrlcc.limits import limits
from distrlcc.parallel.admission import decode, handshake, missing, receive
from distrlcc.parallel.interface import interface_towards
from distrlcc.parallel.store import connect, master_needed
from distrlcc.runs.options import RankSpec

_SAY_SECONDS = 5.0
"""Time after which the user is told which workers are awaited; processes start within it."""

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Name = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[\w.:%-]*$")]


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """A worker's claim to its slot."""

    host: _Name
    process: _Count
    name: _Name


@dataclass(frozen=True)
class Admission:
    """The learner's decision, as a member receives it."""

    rank: int  # rank in the RPC group; 0 is the learner
    workers: list[Worker]  # the workers that were admitted, by rank from 1
    store: Any
    members: dict[str, Worker]  # they by the names of their claims; on a worker itself alone


def admit(spec: RankSpec, identity: Mapping[str, str]) -> Admission:
    """Wait as a learner for all of its workers, and name the members; GroupError: none came."""
    prefix, patience, first = f"{spec.team}/", spec.join_seconds, spec.learners
    own = range(first + spec.learner, spec.size, first)
    slots = {f"{prefix}slot/{slot}": slot - first for slot in own}
    members: dict[int, str] = {}
    workers: dict[str, Worker] = {}
    with master_needed(spec):
        store = connect(spec, patience)
        handshake(store, spec, identity)
        # Wait until all have claimed their slots.
        begin = monotonic()
        late = missing(store, slots, begin + min(_SAY_SECONDS, patience))
        if late and patience > _SAY_SECONDS:
            where = f"{spec.address}:{spec.port}"
            _warn(f"waiting at {where} for {_names(slots, late)}, at most {patience:.0f} s")
            late = missing(store, slots, begin + patience)
        if late:
            _warn(f"{_names(slots, late)} did not come within {patience:.0f} s; going on without")
        # A worker that came and died meanwhile would keep RPC from beginning.
        store.set(f"{prefix}asked", "")
        claims = {
            slots[key]: decode(store.get(key), Claim, f"worker {slots[key]}")
            for key in slots
            if key not in late
        }
        here = {index: f"{prefix}here/{claim.name}" for index, claim in claims.items()}
        gone = missing(store, list(here.values()), monotonic() + limits().worker_silence)
        for index, claim in claims.items():
            worker = Worker(index, claim.host, claim.process)
            if here[index] in gone:
                _warn(f"{worker} came, but is gone; going on without")
            else:
                members[index] = claim.name
                workers[claim.name] = worker
        store.set(f"{prefix}members", json.dumps(members))
    if not members:
        raise GroupError(
            f"no worker came within {patience:.0f} s; start the other nodes, or give a longer "
            "--join-timeout"
        )
    return Admission(0, [*workers.values()], store, workers)


def join(spec: RankSpec, identity: Mapping[str, str]) -> Admission:
    """Join as a worker once its learner decides; GroupError: no learner, no match, or refused."""
    prefix, index = f"{spec.team}/", spec.slot - spec.learners
    # Learners wait for each other first.
    extra = limits().join + (spec.join_seconds if spec.learners > 1 else 0.0)
    with master_needed(spec):
        store = connect(spec, spec.join_seconds)
        handshake(store, spec, identity)
        if store.check([f"{prefix}asked"]):
            raise NoGroupError(
                f"the run at {spec.address}:{spec.port} has begun; no worker can join it any more"
            )
        # Claim the slot, also from a process that was there before and may be gone.
        host = interface_towards(spec.address, spec.interface).address
        own = Claim(host, os.getpid(), uuid.uuid4().hex)
        store.set(f"{prefix}slot/{spec.slot}", msgspec.json.encode(own))
        # Show life when the learner asks for it, and hear which claims are members.
        receive(store, spec, f"{prefix}asked", extra=extra)
        store.set(f"{prefix}here/{own.name}", "")
        told = receive(store, spec, f"{prefix}members", extra=extra)
        members = decode(told, dict[_Count, _Name], "the trainer")
    if members.get(index) != own.name:
        raise NoGroupError(
            f"the trainer refused worker {index}: it came too late, or "
            "another process came as the same worker; give each machine its own --node-index"
        )
    workers = [Worker(member, "", 0) for member in members]
    rank = list(members).index(index) + 1
    return Admission(rank, workers, store, {own.name: workers[rank - 1]})


def _names(slots: Mapping[str, int], keys: list[str]) -> str:
    workers = ", ".join(str(slots[key]) for key in keys)
    return f"worker{'s' if len(keys) > 1 else ''} {workers}"


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)
