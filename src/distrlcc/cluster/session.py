"""A connection to Ray: to a cluster that runs, or to one that it starts on this machine."""

from __future__ import annotations

import importlib.util
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
from typing import Any

from distrlcc.cluster.state import (
    DEFAULT_PORT,
    Ports,
    known_token,
    node_here,
    ray_environment,
    read_state,
    without_secrets,
)
from distrlcc.errors import ConfigError, GroupError
from distrlcc.runs.identity import check_identity, from_json, identity

LOCAL = ""
"""Address that starts Ray on this machine, until the session ends."""
AUTO = "auto"
"""Address of the cluster that runs on this machine."""
TOO_SLOW = "timed out during startup"
"""Ray says so when a node took more than 30 s, which no setting of its changes: try again."""
_CONNECT_SECONDS, _STORE_SECONDS = 5.0, 10.0
_LOCAL_STORE_BYTES = 200_000_000
# In a process of its own: Ray takes its token once, and prints on the standard error stream.
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

    address: str = LOCAL
    """`LOCAL`, `AUTO`, or HOST:PORT of a cluster's head."""
    cpus: float | None = None
    """Cores that a local Ray may give away; None: those that there are."""


def require_ray(address: str = LOCAL) -> Any:
    """Return the module ray, which is to connect to an address.

    Raises:
        ConfigError: It is not installed.
    """
    # Ray reads them once, when it is imported.
    if address != LOCAL:
        os.environ.update(ray_environment())
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # What processes print, and a page on each that dies: members hand over what is to be shown.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    check_installed()
    import ray  # noqa: PLC0415 - an optional extra

    return ray


def check_installed() -> None:
    """Check that there is Ray, without importing it.

    Raises:
        ConfigError: It is not installed.
    """
    if sys.modules.get("ray", ...) is None or importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed: pip install 'distrlcc[ray]'")


@contextmanager
def ray_session(options: RayOptions) -> Iterator[Any]:
    """Connect to Ray, yield the module, and leave nothing behind.

    Raises:
        ConfigError: Ray is not installed.
        GroupError: There is no such cluster, or it does not let us in.
    """
    address = options.address
    ray = require_ray(address)
    # Find the cluster: Ray's own note names the one that was started last.
    if address == AUTO and read_state() is not None:
        address = node_here().ray_address
    if address not in (AUTO, LOCAL):
        read_row(address)  # Ray would wait for minutes where there is nobody
    arguments: dict[str, Any] = {"address": address or "local", "namespace": "distrlcc"}
    arguments |= {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == LOCAL:
        arguments |= {"include_dashboard": False, "num_cpus": options.cpus}
        arguments["object_store_memory"] = _LOCAL_STORE_BYTES
    # Connect; a local Ray that was slow to start is started once more.
    for last in (False, True):
        try:
            ray.init(**arguments)
            break
        except Exception as error:  # Ray raises that class itself
            _shut_down(ray)
            if last or TOO_SLOW not in str(error):
                raise _refused(address, error) from None
    try:
        yield ray
    finally:
        _shut_down(ray)


def _shut_down(ray: Any) -> None:
    """Ray ends in a second or two, or not at all if Ctrl-C interrupts it."""
    if threading.current_thread() is not threading.main_thread():
        ray.shutdown()
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ray.shutdown()
    finally:
        signal.signal(signal.SIGINT, old)


def _refused(address: str, error: Exception) -> GroupError:
    if address == AUTO and isinstance(error, ConnectionError):
        told = (
            "no Ray cluster runs on this machine; start one with: distrlcc cluster start, or "
            "leave --address away"
        )
    else:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        told = f"Ray at {address or 'this machine'} refused: {reason}"
    return GroupError(told, exit_code=2)


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


def read_row(address: str, token: str = "") -> dict[str, str]:
    """Return the versions that the head at an address has written for those that join.

    There are none if the cluster was not started by ``distrlcc cluster start``. Without a token the
    one that this machine knows is used.

    Raises:
        ConfigError: The address is none.
        GroupError: There is no such cluster, or it has another token.
    """
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise GroupError(
            f"no Ray cluster answers at {host}:{port} ({error.strerror or error}); does 'distrlcc "
            f"cluster status' work there, and are ports {Ports(port)} open?",
            exit_code=2,
        ) from None
    row = ask_store(f"{host}:{port}", "", token or known_token())
    return from_json(row.encode()) if row else {}


def ask_store(address: str, row: str, token: str) -> str:
    """Write a row into the internal store of a head if one is given, else return it.

    Raises:
        GroupError: The head has another token, or does not answer.
    """
    environment = dict(os.environ)
    if token:
        environment = without_secrets() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _STORE_SCRIPT, address, row],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_STORE_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_STORE_SECONDS:.0f} s"
    except subprocess.CalledProcessError as error:
        if "AuthenticationError" in error.stderr:
            raise GroupError(
                f"the cluster at {address} has another token than this machine; give its own: "
                "'distrlcc cluster status --show-token' on the head shows it",
                exit_code=2,
            ) from None
        reason = error.stderr.strip().rpartition("\n")[2]
    else:
        return done.stdout
    raise GroupError(
        f"the process that listens at {address} does not answer as Ray ({reason}); is another "
        "program there?",
        exit_code=2,
    )


@dataclass(frozen=True)
class _NoConfig:
    """Machines have only versions in common."""


def node_identity() -> dict[str, str]:
    """Return the versions that must agree; Ray wants Python's to the patch level."""
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
