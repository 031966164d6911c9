"""Starts, joins and leaves a Ray cluster on this machine: a thin layer over ``ray start --block``.

Ray's own processes watch each other and end together. Traffic is authenticated by a token, but not
encrypted: a private network or a VPN is needed.
"""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from distrlcc.cluster.nodes import gather, probes, ray_nodes
from distrlcc.cluster.session import (
    AUTO,
    TOO_SLOW,
    RayOptions,
    ask_store,
    check_installed,
    differences,
    node_identity,
    parse_address,
    ray_session,
    read_row,
)
from distrlcc.cluster.state import (
    DASHBOARD_PORT,
    DEFAULT_PORT,
    FIRST_WORKER_PORT,
    LAST_WORKER_PORT,
    MARK,
    Node,
    keep_token,
    kept_token,
    known_token,
    log_path,
    read_state,
    state_folder,
    token_path,
    without_secrets,
    write_state,
)
from distrlcc.errors import ConfigError, DistrlccError, GroupError
from distrlcc.parallel.admission import TOKEN, checked_token, new_token, own_token
from distrlcc.parallel.interface import Interface, interface_towards, interfaces, resolve
from distrlcc.processes import Process, find_process
from distrlcc.runs.identity import to_json

_START_SECONDS = 120.0
"""Time that Ray has to start, again if it gave itself up, s."""
_STOP_SECONDS, _KILL_SECONDS, _REACH_SECONDS, _AGAIN_SECONDS = 15.0, 5.0, 10.0, 3.0
_TICK = 0.1
_STARTED = "Ray runtime started."
_POINTER = Path("/tmp/ray/ray_current_cluster")
"""Where Ray notes which cluster ``ray.init(address="auto")`` finds."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

HEALTH = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}
"""The head gives up a machine after five checks without an answer of 3 s, 1 s apart: 20 s. A
machine notices after 10 s that its head does not answer, and ends Ray after another 15 s. By Ray's
defaults it is 67 s there, and several minutes here."""


def start_head(
    ip: str = "",
    port: int = DEFAULT_PORT,
    *,
    interface: str = "",
    flags: Sequence[str] = (),
    allow_public: bool = False,
) -> Node:
    """Start a cluster's head on this machine, and return once it runs.

    ``ip`` or ``interface`` is needed where there are several that others reach; ``flags`` are more
    of ``ray start``.

    Raises:
        ConfigError: An address, an interface or a token that does not do.
        GroupError: Ray runs here already, a port is taken, or Ray did not start.
    """
    _require_none_here()
    own = head_interface(ip, interface)
    token = checked_token(own_token(), TOKEN) if own_token() else kept_token() or new_token()
    dashboard = ("--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD_PORT}")
    node = _plan(own, own.address, port, ("--head", *dashboard, *flags), allow_public)
    keep_token(token)
    return _start_ray(node, _write_row)


def join(
    head: str,
    *,
    interface: str = "",
    flags: Sequence[str] = (),
    allow_public: bool = False,
    rejoin: bool = False,
    ask_token: Callable[[], str] = str,
) -> Node:
    """Let this machine join a cluster, and return once it has.

    Args:
        head: HOST:PORT of the cluster's head.
        interface: Network interface instead of the one on the route to the head.
        flags: More of ``ray start``.
        allow_public: Whether addresses may be public.
        rejoin: Whether to join again whenever the head was lost and is back.
        ask_token: Called when this machine knows no token.

    Raises:
        ConfigError: An address, an interface or a token that does not do.
        GroupError: The head is out of reach or does not fit, Ray runs here already, a port is
            taken, or Ray did not start.
    """
    _require_none_here()
    # Find the way to the head.
    host, port = parse_address(head)
    address = resolve(host)
    own = interface_towards(address, interface)
    if own.address == address or own.name == "lo":
        raise ConfigError(
            f"{host} is this machine itself; 'distrlcc cluster start' runs the head here, "
            "'distrlcc cluster join' is for the others"
        )
    node = _plan(own, address, port, (f"--address={address}:{port}", *flags), allow_public)
    # Compare token and versions before Ray starts here.
    token = known_token() or ask_token()
    if not token:
        raise ConfigError(
            f"the token of the cluster is needed: 'distrlcc cluster status --show-token' on "
            f"{host} prints the whole line, {TOKEN}=... distrlcc cluster join {head}"
        )
    _check_versions(node.ray_address, token)
    keep_token(token)
    # Join, and let the head try whether it reaches this machine.
    node = _start_ray(node, _check_reached)
    if rejoin:
        script = "from distrlcc.cluster.cluster import rejoin; rejoin()"
        node = replace(node, rejoiner=_leave_behind([sys.executable, "-c", script], node))
        write_state(node)
    return node


def rejoin() -> None:
    """Join again whenever Ray has ended here; runs in a process that ``join`` leaves behind."""
    while True:
        time.sleep(_AGAIN_SECONDS)
        node = read_state()
        if node is None or node.process.alive():
            continue
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        _kill_rest()
        try:
            _check_versions(node.ray_address)
            _start_ray(node)
        except (DistrlccError, OSError) as error:
            write_state(replace(node, reason=str(error)))


def stop() -> Node | None:
    """End what was started on this machine, and nothing else.

    Returns:
        What it was; None where a cluster that was killed has left processes.

    Raises:
        GroupError: There is nothing, or it does not end.
    """
    node = read_state()
    if not _marked():
        write_state(None)
        ended = f" (the cluster at {node.ray_address} has ended by itself)" if node else ""
        raise GroupError(f"nothing to stop on this machine{ended}", exit_code=2)
    # Ray ends in good order; the rejoiner would start it again.
    if node is not None:
        if node.rejoiner is not None:
            node.rejoiner.signal(signal.SIGKILL)
        node.process.signal(signal.SIGTERM)
        _wait(lambda: not node.process.alive(), _STOP_SECONDS)
    # Then whatever is left of it is killed.
    remaining = _kill_rest()
    if remaining:
        numbers = ", ".join(str(process.pid) for process in remaining)
        raise GroupError(f"processes {numbers} do not end even when killed")
    with suppress(OSError):
        if node is not None and _POINTER.read_text().strip() == node.ray_address:
            _POINTER.unlink()
    write_state(None)
    return node


def join_line(node: Node, *, show_token: bool) -> str:
    """Return the line to paste on the next machine."""
    line = f"distrlcc cluster join {node.ray_address}"
    return f"{TOKEN}={kept_token()} {line}" if show_token else line


def head_interface(ip: str, name: str) -> Interface:
    """Return the interface that a head listens on; it is never guessed.

    Raises:
        ConfigError: There is none like this, or several to choose from.
    """
    found = interfaces()
    names = ", ".join(map(str, found)) or "none"
    if ip:
        address = resolve(ip)
        for interface in found:
            if interface.address == address and name in ("", interface.name):
                return interface
        on = f" on {name}" if name else ""
        raise ConfigError(f"--ip {ip}: expected an address of this machine{on} ({names})")
    if name:
        return interface_towards("127.0.0.1", name)
    outward = [interface for interface in found if not interface.address.startswith("127.")]
    if len(outward) == 1:
        return outward[0]
    if not outward:
        raise ConfigError("this machine has no network interface that others reach; is it up?")
    raise ConfigError(
        f"the other machines could reach this one at {', '.join(map(str, outward))}; say which "
        "with --ip or --interface"
    )


def _check_versions(head: str, token: str = "") -> None:
    """Compare this machine's versions with those that the head has written."""
    row = read_row(head, token)
    if not row:
        raise GroupError(
            f"the cluster at {head} was not started by 'distrlcc cluster start', so versions "
            "cannot be compared; 'ray start' joins it",
            exit_code=2,
        )
    if table := differences(row):
        raise GroupError(
            "this machine does not match the head ('master' below); install the same on both:\n"
            f"{table}",
            exit_code=2,
        )


def _write_row(node: Node) -> None:
    """Write this machine's versions where those that join read them."""
    ask_store(node.ray_address, to_json(node_identity()), known_token())


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 2.0).close()
    except OSError:
        return False
    return True


def _check_reached(node: Node) -> None:
    """Have the head connect to this machine; Ray itself gives it up after 20 s."""
    port = node.port + 1  # the node manager's, where health checks arrive
    with ray_session(RayOptions(AUTO)) as ray:
        head = ray_nodes(ray)[0]
        with probes(ray, [head]) as made:
            call = made[head].call.remote(_connects, node.address, port)
            answer = gather(ray, {head: call}, _REACH_SECONDS)[head]
    if answer is not True:
        raise GroupError(
            f"the head cannot reach this machine at {node.address}:{port}; open ports "
            f"{node.ports} on both sides. Where addresses are translated (NAT), use a VPN",
            exit_code=2,
        )


def _require_none_here() -> None:
    """Check that no cluster runs here, and remove what one that has ended leaves."""
    check_installed()
    node = read_state()
    if node is not None and (node.process.alive() or node.rejoins):
        kind = "a cluster's head" if node.is_head else "a member of a cluster"
        raise GroupError(
            f"this machine is {kind} already ({node.ray_address}, since {node.since}); end "
            "that with: distrlcc cluster stop",
            exit_code=2,
        )
    _kill_rest()
    write_state(None)


def _plan(own: Interface, head: str, port: int, flags: Sequence[str], allow_public: bool) -> Node:
    """Return what is to be started, once its addresses and ports are checked."""
    for address in (head, own.address):
        if ipaddress.ip_address(address).is_global and not allow_public:
            raise ConfigError(
                f"{address} is a public address, and what Ray sends is not encrypted: use a "
                "private network or a VPN, or give --allow-public"
            )
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += ["--disable-usage-stats", f"--node-ip-address={own.address}"]
    node = Node(own.address, head, port, own.name, command)
    node.ports.check_free(head=node.is_head)
    workers = {"--min-worker-port": FIRST_WORKER_PORT, "--max-worker-port": LAST_WORKER_PORT}
    ports = node.ports.settings(head=node.is_head) | workers
    command += [f"{name}={number}" for name, number in ports.items() if name.startswith("--")]
    command += flags
    return node


def _start_ray(node: Node, then: Callable[[Node], None] = lambda _: None) -> Node:
    """Start Ray, wait until it runs, and end it if what is to be done then fails."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        log_path().unlink(missing_ok=True)
        process = _leave_behind(node.command, node)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        node = replace(node, process=process, since=since, reason="")
        try:
            reason = _await_start(process, deadline)
            if not reason:
                write_state(node)
                then(node)
                return node
            if TOO_SLOW not in reason or time.monotonic() > deadline:
                raise GroupError(
                    f"Ray did not start: {reason} (all of it: {log_path()})", exit_code=2
                )
        except BaseException:
            _kill_rest(process)
            write_state(None)
            raise
        _kill_rest(process)


def _leave_behind(command: list[str], node: Node) -> Process:
    """Start a process that outlives this one."""
    ports = node.ports.settings(head=True)
    environment = {
        **without_secrets(),
        **HEALTH,
        **{name: str(port) for name, port in ports.items() if name.isupper()},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_path()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # a process that renames itself keeps its environment, and so the mark
        MARK: str(state_folder()),
    }
    with log_path().open("ab") as log:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state_folder(),
            start_new_session=True,
        )
    child.returncode = 0  # it goes on without us
    return find_process(child.pid) or Process(child.pid, 0)


def _await_start(process: Process, deadline: float) -> str:
    """Wait until Ray says that it runs; return why it does not."""

    def said() -> str:
        return log_path().read_text(errors="replace")

    seconds = deadline - time.monotonic()
    if not _wait(lambda: _STARTED in said() or not process.alive(), seconds):
        return f"not within {_START_SECONDS:.0f} s"
    if _STARTED in said():
        return ""
    # The line that says why it failed.
    lines = [line.strip() for line in _COLOURS.sub("", said()).splitlines() if line.strip()]
    telling = [line for line in lines if re.search("[Ee]rror|failed|" + TOO_SLOW, line)]
    return (telling or lines or ["Ray said nothing"])[-1]


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; say whether it came in time."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(_TICK)
    return met


def _marked() -> list[Process]:
    """Return the processes of this machine's part in a cluster, its orphans too."""
    mark = f"{MARK}={state_folder()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with suppress(OSError):
            if pid != os.getpid() and mark in path.read_bytes().split(b"\0"):
                found.append(find_process(pid))
    return [process for process in found if process is not None]


def _kill_rest(*others: Process) -> list[Process]:
    """Kill what is left of this machine's part, and what that starts meanwhile.

    Returns:
        Processes that do not end in time.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while found := [*(process for process in others if process.alive()), *_marked()]:
        if time.monotonic() > deadline:
            return found
        for process in found:
            process.signal(signal.SIGKILL)
        time.sleep(_TICK)
    return []
