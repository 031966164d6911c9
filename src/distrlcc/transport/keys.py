"""Keys, authenticators and cookies, all from BLAKE2s.

What the authenticators are for: someone who does not see the session's packets cannot end it,
refuse it or steer it with forged ACKs. What they are not for: the keys come from nonces that travel
in clear, so whoever sees the handshake can compute them, forge anything and read everything.
Against an observer on the path only a tunnel (WireGuard, IPsec) helps.
"""

from __future__ import annotations

import struct
from hashlib import blake2s
from hmac import compare_digest
from typing import Any

from distrlcc.transport.messages import Buffer
from distrlcc.types import NANOSECONDS

TAG_BYTES = 8
_SESSION = struct.Struct("!Q")
_TIME = struct.Struct("!I")


def session_key(session: int, client_nonce: bytes, server_nonce: bytes = b"") -> bytes:
    """Derive the key of a session, 32 bytes.

    RETRY, WELCOME and REFUSE come before the sender knows the receiver's nonce: their key is
    derived with an empty one. ACK, CLOSE and CLOSED use both nonces.
    """
    material = _SESSION.pack(session) + client_nonce + server_nonce
    return blake2s(material, person=b"dlcckey1").digest()


def tag(data: Buffer, key: bytes) -> bytes:
    """Return the authenticator of a datagram's bytes, `TAG_BYTES`."""
    return blake2s(data, digest_size=TAG_BYTES, key=key).digest()


def authentic(datagram: Buffer, key: bytes) -> bool:
    """Tell whether a datagram that `decode` took ends with the authenticator of its key."""
    expected = blake2s(datagram[:-TAG_BYTES], digest_size=TAG_BYTES, key=key).digest()
    return compare_digest(expected, datagram[-TAG_BYTES:])


def make_cookie(
    secret: bytes, address: tuple[Any, ...], session: int, nonce: bytes, *, now: int
) -> bytes:
    """Return a cookie for a HELLO: the time in seconds and a keyed hash over all that it proves.

    Args:
        secret: The receiver's secret, 32 random bytes.
        address: The sender's address as its socket gives it.
        session: The HELLO's session.
        nonce: The HELLO's nonce.
        now: Time, ns.
    """
    time = _TIME.pack(now // NANOSECONDS & 0xFFFFFFFF)
    return time + _cookie_hash(secret, address, session, nonce, time)


def cookie_age(
    cookie: bytes,
    secret: bytes,
    address: tuple[Any, ...],
    session: int,
    nonce: bytes,
    *,
    now: int,
) -> int | None:
    """Return a cookie's age in whole seconds; None for one that was not made for this HELLO."""
    time = cookie[:4]
    expected = _cookie_hash(secret, address, session, nonce, time)
    if not compare_digest(expected, cookie[4:]):
        return None
    return (now // NANOSECONDS - int(_TIME.unpack(time)[0])) & 0xFFFFFFFF


def server_nonce(secret: bytes, cookie: bytes, nonce: bytes) -> bytes:
    """Return the receiver's nonce for a HELLO: the same for every copy of it."""
    return blake2s(cookie + nonce, digest_size=16, key=secret, person=b"dlccnonc").digest()


def _cookie_hash(
    secret: bytes, address: tuple[Any, ...], session: int, nonce: bytes, time: bytes
) -> bytes:
    material = time + _SESSION.pack(session) + nonce + repr(address).encode()
    return blake2s(material, digest_size=16, key=secret, person=b"dlcccook").digest()
