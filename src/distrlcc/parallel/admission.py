"""Admission to a group, the same in both topologies: one identity and one shared secret.

Slot 0 puts into the master's store what all must have in common, and a proof that it knows the
secret (`DISTRLCC_TOKEN`); every other process compares both before it takes part.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import uuid
from collections.abc import Collection, Mapping
from time import monotonic, sleep
from typing import Any

from distrlcc.errors import ConfigError, GroupError
from distrlcc.limits import limits
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.runs.identity import check_identity

TOKEN = "DISTRLCC_TOKEN"
"""Environment variable with the secret."""
_SHORTEST = 16


def own_token() -> str:
    """Return the secret that the environment gives, empty if none."""
    return os.environ.get(TOKEN, "")


def checked_token(token: str, source: str) -> str:
    """Return a token that may guard a cluster.

    Raises:
        ConfigError: It is too short to guard anything, or cannot be sent in a header.
    """
    if len(token) < _SHORTEST:
        raise ConfigError(
            f"{source} has {len(token)} characters; expected {_SHORTEST} or more, such as those of "
            "'openssl rand -hex 32', as it lets anyone run code on all machines"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{source}: expected letters and digits, without spaces")
    return token


def proof(nonce: str, role: str, token: str) -> str:
    """Return what only a holder of the secret can compute in this exchange and role."""
    return hmac.new(token.encode(), f"{nonce}/{role}".encode(), hashlib.sha256).hexdigest()


def proves(claim: object, nonce: str, role: str, token: str) -> bool:
    """Say whether a claim is the proof; it takes as long to refuse as to accept."""
    return hmac.compare_digest(str(claim).encode(), proof(nonce, role, token).encode())


def handshake(store: Any, spec: RankSpec, identity: Mapping[str, str], nonce: str = "") -> str:
    """Compare with the identity that slot 0 published first; return the nonce that it gave.

    Raises:
        GroupError: Slot 0 is not there, or this process does not match it.
    """
    key = f"{spec.attempt}/identity"
    if spec.slot == 0:
        nonce = nonce or uuid.uuid4().hex
        own = {**identity, "nonce": nonce, "token": proof(nonce, "master", own_token())}
        store.compare_set(key, "", json.dumps(own))
    master: dict[str, str] = json.loads(receive(store, spec, key))
    nonce, claim = master.pop("nonce", ""), master.pop("token", "")
    check_identity(master, identity)
    if not proves(claim, nonce, "master", own_token()):
        raise GroupError(
            f"the master at {spec.address}:{spec.port} has another {TOKEN} than this process; "
            "set the same one on every machine",
            exit_code=2,
        )
    return nonce


def receive(store: Any, spec: RankSpec, key: str, *, extra: float = 0.0) -> bytes:
    """Return a key's value once it is in the store; wait ``extra`` seconds beyond the join timeout.

    Raises:
        GroupError: It is not there in time.
    """
    if missing(store, [key], monotonic() + spec.join_seconds + extra):
        raise GroupError(
            f"the master at {spec.address}:{spec.port} did not send {key!r} within "
            f"{spec.join_seconds + extra:.0f} s; is node 0 of this run there?",
            exit_code=2,
        )
    return bytes(store.get(key))


def missing(store: Any, keys: Collection[str], deadline: float) -> list[str]:
    """Wait until all keys are in the store; return those that are not by the deadline."""
    while not (here := store.check(list(keys))) and monotonic() < deadline:
        sleep(limits().tick)
    return [] if here else [key for key in keys if not store.check([key])]
