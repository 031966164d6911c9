"""A connection to Ray: to a cluster that runs, or to one that it starts on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distrlcc.cluster.ray_gate import ask_gate, gate_answers
from distrlcc.cluster.ray_ports import Ports
from distrlcc.cluster.ray_state import node_here, read_state
from distrlcc.cluster.ray_token import known_token, ray_environment
from distrlcc.errors import ConfigError, GroupError

LOCAL = ""
"""Address that starts Ray on this machine, until the session ends."""
AUTO = "auto"
"""Address of the cluster that runs on this machine."""
NAMESPACE = "distrlcc"
TOO_SLOW = "timed out during startup"
"""Ray says so when a node took more than 30 s, which no setting of its changes: try again."""
_CONNECT_SECONDS = 5.0
_LOCAL_STORE_BYTES = 200_000_000


@dataclass(frozen=True)
class RayOptions:
    """Which Ray, and what of it on this machine."""

    address: str = LOCAL
    """`LOCAL`, `AUTO`, or HOST:PORT of a cluster's head."""
    cpus: float | None = None
    """Cores that a local Ray may give away; None: those that there are."""


def require_ray(address: str = LOCAL) -> Any:
    """Return the module ray.

    Args:
        address: Which Ray will be used: what lets us into a cluster is read once, too.

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
    try:
        import ray  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'distrlcc[ray]'") from None
    return ray


@contextmanager
def ray_session(options: RayOptions) -> Iterator[Any]:
    """Connect to Ray, yield the module, and leave nothing behind.

    Raises:
        ConfigError: Ray is not installed.
        GroupError: There is no such cluster, or it does not let us in.
    """
    address = options.address
    ray = require_ray(address)
    if address == AUTO and read_state() is not None:
        address = node_here().plan.ray_address  # Ray's own note is of whoever started last
    arguments: dict[str, Any] = {
        "namespace": NAMESPACE,
        "logging_level": logging.ERROR,
        "log_to_driver": False,
    }
    if address == LOCAL:
        arguments |= {
            "address": "local",
            "include_dashboard": False,
            "num_cpus": options.cpus,
            "object_store_memory": _LOCAL_STORE_BYTES,
        }
    else:
        arguments["address"] = address
        if address != AUTO:
            _check_head(address)
    for last in (False, True):
        try:
            ray.init(**arguments)
            break
        except Exception as error:  # Ray raises that class itself
            with _deaf():
                ray.shutdown()
            if last or TOO_SLOW not in str(error):
                raise _refused(address, error) from None
    try:
        yield ray
    finally:
        with _deaf():
            ray.shutdown()


@contextmanager
def _deaf() -> Iterator[None]:
    """Hear no Ctrl-C: Ray ends in a second or two, or not at all if it is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _check_head(address: str) -> None:
    """See that a head is there, and if it is one of ours that we have its token."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--address {address}: expected auto or HOST:PORT, as 10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
            pass
    except OSError as error:
        raise GroupError(
            f"no Ray cluster answers at {address} ({error.strerror or error}) within "
            f"{_CONNECT_SECONDS:.0f} s; start it there with: distrlcc cluster start",
            exit_code=2,
        ) from None
    gate = Ports(int(port)).gate
    with suppress(OSError):  # no gate: a cluster that was not started by us
        if gate_answers(host, gate):
            ask_gate(host, gate, known_token())


def _refused(address: str, error: Exception) -> GroupError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if address == AUTO and isinstance(error, ConnectionError):
        return GroupError(
            "no Ray cluster runs on this machine; start one with: distrlcc cluster start, or "
            "leave --address away",
            exit_code=2,
        )
    return GroupError(f"Ray at {address or 'this machine'} refused: {reason}", exit_code=2)
