"""A connection to Ray: to a cluster that runs, or to one that it starts on this machine."""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distrlcc.cluster.state import (
    DEFAULT_PORT,
    Ports,
    kept_token,
    known_token,
    node_here,
    read_state,
    without_secrets,
)
from distrlcc.errors import ConfigError, GroupError
from distrlcc.limits import limits
from distrlcc.runs.identity import check_identity, from_json, identity

AUTO = "auto"
"""Address of the cluster that runs on this machine."""
TOO_SLOW = "timed out during startup"
"""Ray says so when a node took more than 30 s, which no setting of its changes: try again."""
POINTER = Path("/tmp/ray/ray_current_cluster")
"""Where Ray notes which cluster ``ray.init(address="auto")`` finds."""
_LOCAL_STORE_BYTES = 200_000_000
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Members report what is to be shown: not all that processes print, nor a page on each death.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
# It runs in a process of its own, as Ray may try forever to reach what is no head.
_STORE_SCRIPT = """
import sys
from ray._raylet import GcsClient
address, row = sys.argv[1:]
store = GcsClient(address=address)
if row:
    store.internal_kv_put(b"identity", row.encode(), True, b"distrlcc")
else:
    sys.stdout.write((store.internal_kv_get(b"identity", b"distrlcc") or b"").decode())
"""


@dataclass(frozen=True)
class RayOptions:
    """Which Ray, and what of it on this machine."""

    address: str = ""
    """`AUTO`, or HOST:PORT of a cluster's head; empty starts Ray here for the session."""
    cpus: float | None = None
    """Cores that a Ray of the session may give away; None: all."""


def require_ray() -> Any:
    """Return the module ray.

    Raises:
        ConfigError: It is not installed.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed: pip install 'distrlcc[ray]'") from None
    return ray


@contextmanager
def ray_session(options: RayOptions) -> Iterator[Any]:
    """Connect to Ray, yield the module, and leave nothing behind.

    Raises:
        ConfigError: Ray is not installed.
        GroupError: There is no such cluster, or it refuses the connection.
    """
    ray = require_ray()
    arguments = {"namespace": "distrlcc", "logging_level": logging.ERROR, "log_to_driver": False}
    if options.address:
        arguments["address"] = address = _resolve(options.address)
        os.environ.update(_credentials(address))
        # Ray read its environment when it was imported.
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    else:
        arguments |= {"address": "local", "include_dashboard": False, "num_cpus": options.cpus}
        arguments["object_store_memory"] = _LOCAL_STORE_BYTES
    # Connect; a local Ray that was slow to start is started once more.
    for last in (False, True):
        try:
            ray.init(**arguments)
            break
        except Exception as error:  # Ray raises that class itself
            _shut_down(ray)
            if last or TOO_SLOW not in str(error):
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                where = options.address or "this machine"
                raise GroupError(f"Ray at {where} refused: {reason}", exit_code=2) from None
    try:
        yield ray
    finally:
        _shut_down(ray)


def _shut_down(ray: Any) -> None:
    """End the connection; Ctrl-C must not interrupt it, or Ray stays."""
    if threading.current_thread() is not threading.main_thread():
        ray.shutdown()
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ray.shutdown()
    finally:
        signal.signal(signal.SIGINT, old)


def _resolve(address: str) -> str:
    """Return HOST:PORT of a cluster's head."""
    if address != AUTO:
        return address
    if read_state() is not None:
        return node_here().ray_address
    try:
        return os.environ.get("RAY_ADDRESS") or POINTER.read_text().strip()
    except OSError:
        raise GroupError(
            "no Ray cluster runs on this machine; start one with: distrlcc cluster start, or "
            "leave --address away",
            exit_code=2,
        ) from None


def _credentials(address: str) -> dict[str, str]:
    """Return Ray's variables by which a cluster admits this process.

    A cluster that was not started by ``distrlcc cluster start`` may need no token. Then none may be
    given, even if this machine keeps one: its own processes would refuse each other.
    """
    node = read_state()
    here = node is not None and node.ray_address == address
    token = kept_token() if here else known_token()
    if not read_row(address, token) and token:
        try:
            ask_store(address, "", "")
            token = ""
        except GroupError:
            pass
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST`` or ``HOST:PORT``.

    Raises:
        ConfigError: It is neither.
    """
    host, colon, port = text.rpartition(":")
    host, port = (host, port) if colon else (text, str(DEFAULT_PORT))
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65527:
        raise ConfigError(f"{text!r}: expected HOST:PORT of the head, as 10.0.0.1:{DEFAULT_PORT}")
    return host, int(port)


def read_row(address: str, token: str) -> dict[str, str]:
    """Return the versions that a cluster's head has written for machines that join.

    There are none if the cluster was not started by ``distrlcc cluster start``.

    Raises:
        ConfigError: The address is none.
        GroupError: There is no such cluster, or it has another token.
    """
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), limits().call).close()
    except OSError as error:
        raise GroupError(
            f"no Ray cluster answers at {host}:{port} ({error.strerror or error}); does 'distrlcc "
            f"cluster status' work there, and are ports {Ports(port)} open?",
            exit_code=2,
        ) from None
    row = ask_store(f"{host}:{port}", "", token)
    return from_json(row.encode()) if row else {}


def ask_store(address: str, row: str, token: str) -> str:
    """Write a row into the internal store of a head if one is given, else return it.

    Without a token the variables of the environment say how Ray admits this process.

    Raises:
        GroupError: The head has another token, or does not answer.
    """
    # Ask in a process of its own.
    environment = dict(os.environ)
    if token:
        environment = without_secrets() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    seconds = 2 * limits().call  # a process starts, and then it asks
    try:
        done = subprocess.run(
            [sys.executable, "-c", _STORE_SCRIPT, address, row],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
        return done.stdout
    # Tell a wrong token from a program that is not Ray.
    except subprocess.TimeoutExpired:
        reason = f"no answer within {seconds:.0f} s"
    except subprocess.CalledProcessError as error:
        if "AuthenticationError" in error.stderr:
            raise GroupError(
                f"the cluster at {address} has another token than this machine; give its own: "
                "'distrlcc cluster status --show-token' on the head shows it",
                exit_code=2,
            ) from None
        reason = error.stderr.strip().rpartition("\n")[2]
    raise GroupError(
        f"the process that listens at {address} does not answer as Ray ({reason}); is another "
        "program there?",
        exit_code=2,
    )


@dataclass(frozen=True)
class _NoConfig:
    """Machines have only versions in common."""


def node_identity() -> dict[str, str]:
    """Return the versions that must agree; Ray compares Python's to the patch level."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = "not installed"
    common = identity(_NoConfig(), python=platform.python_version(), ray=ray)
    return {name: value for name, value in common.items() if value}


def differences(head: dict[str, str]) -> str:
    """Return a table of what differs between the head and this machine; empty if nothing does."""
    try:
        check_identity(head, node_identity())
    except GroupError as error:
        return str(error).partition("\n")[2]
    return ""


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray's, which says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def death(error: Exception) -> str:
    """Return why Ray says that an actor is gone, in a few words."""
    text = " ".join(str(error).split()).lower()
    for words, reason in (
        ("node died", "its machine is gone"),
        ("node was terminated", "its machine is gone"),
        ("unavailable", "it died or cannot be reached"),
        ("ray.kill", "it was given up"),
        ("owner", "its trainer is gone"),
        ("process", "its process died"),
    ):
        if words in text:
            return reason
    return last_line(error)
