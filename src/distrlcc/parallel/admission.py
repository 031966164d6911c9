"""Admission to a group: slot 0 publishes what all must share, and the others compare.

Only who has the token reaches the master's store from elsewhere; see `distrlcc.parallel.tunnel`.
"""

import json
import os
import uuid
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Annotated, Any

import msgspec

from distrlcc.errors import ConfigError, NoGroupError, reading
from distrlcc.limits import wait_until
from distrlcc.runs.identity import check_identity
from distrlcc.runs.options import RankSpec
from distrlcc.runs.stopper import Stopper

TOKEN = "DISTRLCC_TOKEN"  # environment variable with the secret
_SHORTEST = 16
_RUN = "nonce"
_Name = Annotated[str, msgspec.Meta(max_length=1 << 13)]  # it may hold a file's path
Identity = dict[_Name, Annotated[str, msgspec.Meta(max_length=1 << 20)]]


def own_token() -> str:
    """Return the secret that the environment gives, empty if none."""
    return os.environ.get(TOKEN, "")


def checked_token(token: str) -> str:
    """Return a token that may guard a cluster; ConfigError: too short, or unfit for a header."""
    if len(token) < _SHORTEST:
        raise ConfigError(
            f"{TOKEN} has {len(token)} characters; expected {_SHORTEST} or more, such as those of "
            "'openssl rand -hex 32', as it lets anyone run code on all machines"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{TOKEN}: expected letters and digits, without spaces")
    return token


def guard(token: str, address: str) -> str:
    """Return a token for a machine that others reach; ConfigError: it is missing or invalid."""
    if not token:
        raise ConfigError(
            f"{address} is not on this machine alone: set {TOKEN} to that of node 0, which "
            "prints the whole line for the others if it made the token"
        )
    return checked_token(token)


def handshake(store: Any, spec: RankSpec, identity: Mapping[str, str], run: str = "") -> str:
    """Compare with slot 0's identity; return the run's id; GroupError: no slot 0, or no match."""
    key = f"{spec.attempt}/identity"
    if spec.slot == 0:
        own = {**identity, _RUN: run or uuid.uuid4().hex}
        store.compare_set(key, "", json.dumps(own))
    master = decode(receive(store, spec, key), Identity, f"the master at {spec.address}")
    run = master.pop(_RUN, "")
    check_identity(master, identity)
    return run


def decode(data: bytes, kind: Any, source: str) -> Any:
    """Return what another member said, as it must be; raises GroupError if it is something else."""
    what = f"{source} said something else than expected"
    with reading(NoGroupError, what, "; is it of this version?"):
        return msgspec.json.decode(data, type=kind)


def receive(store: Any, spec: RankSpec, key: str, *, extra: float = 0.0) -> bytes:
    """Return a key's value, ``extra`` seconds beyond the join timeout at most; else GroupError."""
    if missing(store, [key], monotonic() + spec.join_seconds + extra):
        raise NoGroupError(
            f"the master at {spec.address}:{spec.port} did not send {key!r} within "
            f"{spec.join_seconds + extra:.0f} s; is node 0 of this run there?"
        )
    return bytes(store.get(key))


def missing(store: Any, keys: Collection[str], deadline: float) -> list[str]:
    """Wait until all keys are in the store, or a user's signal; return those that are not."""
    wait_until(lambda: store.check(list(keys)) or Stopper.newest, deadline - monotonic())
    return [key for key in keys if not store.check([key])]
