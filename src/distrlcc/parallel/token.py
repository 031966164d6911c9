"""The secret that the machines of a group share, and proofs that one knows it without saying it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets

from distrlcc.errors import ConfigError

TOKEN = "DISTRLCC_TOKEN"
"""Environment variable with the secret."""
_SHORTEST = 16


def own_token() -> str:
    """Return the secret that the environment gives, empty if none."""
    return os.environ.get(TOKEN, "")


def new_token() -> str:
    """Return a secret that nobody guesses."""
    return secrets.token_hex(32)


def checked_token(token: str, source: str) -> str:
    """Return a token that may guard a cluster.

    Raises:
        ConfigError: It is too short to guard anything, or cannot be sent in a header.
    """
    if len(token) < _SHORTEST:
        raise ConfigError(
            f"{source} has {len(token)} characters; expected {_SHORTEST} or more, such as those of "
            "'openssl rand -hex 32', as whoever knows it may run code on all machines"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{source}: expected letters and digits, without spaces")
    return token


def proof(nonce: str, role: str, token: str) -> str:
    """Return what only a holder of the secret can say in this exchange and role."""
    return hmac.new(token.encode(), f"{nonce}/{role}".encode(), hashlib.sha256).hexdigest()


def proves(claim: object, nonce: str, role: str, token: str) -> bool:
    """Say whether a claim is the proof; it takes as long to refuse as to accept."""
    return hmac.compare_digest(str(claim).encode(), proof(nonce, role, token).encode())
