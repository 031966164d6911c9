"""The token of the Ray cluster that this machine is in, kept where only its owner can read it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from distrlcc.cluster.ray_state import read_state, state_folder
from distrlcc.errors import OutputError
from distrlcc.parallel.token import TOKEN, own_token


def token_path() -> Path:
    """Return the file with the cluster's token."""
    return state_folder() / "token"


def kept_token() -> str:
    """Return the token of the cluster that this machine is or was in, empty if none."""
    try:
        return token_path().read_text().strip()
    except FileNotFoundError:
        return ""


def known_token() -> str:
    """Return the token that the environment gives, or the one that is kept."""
    return own_token() or kept_token()


def keep_token(token: str) -> None:
    """Write the token into a file that only its owner may read."""
    path = token_path()
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as file:
            file.write(token)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def ray_environment() -> dict[str, str]:
    """Return what lets a process of this machine in: variables that Ray reads when imported."""
    if kept_token() and (read_state() is not None or not own_token()):
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path())}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": own_token()} if own_token() else {}


def without_secrets(environment: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return an environment without tokens and addresses of other clusters."""
    secret = {TOKEN, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"}
    return {name: value for name, value in environment if name not in secret}
