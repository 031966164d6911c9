"""Starts, joins and leaves a Ray cluster on this machine: a thin layer over ``ray start --block``.

Ray's own processes watch each other and end together. Traffic is authenticated by a token, but not
encrypted: a private network or a VPN is needed.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
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

from distrlcc.cluster.nodes import ray_nodes
from distrlcc.cluster.session import (
    AUTO,
    POINTER,
    TOO_SLOW,
    RayOptions,
    ask_store,
    differences,
    node_identity,
    parse_address,
    ray_session,
    read_row,
    require_ray,
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
from distrlcc.limits import limits
from distrlcc.parallel.admission import TOKEN, checked_token, own_token
from distrlcc.parallel.interface import Interface, interface_towards, interfaces, resolve
from distrlcc.processes import Process, find_process
from distrlcc.runs.identity import to_json

_STARTED = "Ray runtime started."
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def health() -> dict[str, str]:
    """Return Ray's variables by which a cluster gives up a machine.

    The head does so after five checks without an answer, `Limits.stall` together. A machine notices
    after half of that that its head does not answer, and ends Ray after another three quarters. By
    Ray's defaults it is 67 s there, and several minutes here.
    """
    stall = limits().stall
    return {
        "RAY_health_check_initial_delay_ms": "5000",
        "RAY_health_check_period_ms": f"{50 * stall:.0f}",
        "RAY_health_check_timeout_ms": f"{150 * stall:.0f}",
        "RAY_health_check_failure_threshold": "5",
        "RAY_grpc_client_keepalive_timeout_ms": f"{500 * stall:.0f}",
        "RAY_gcs_rpc_server_reconnect_timeout_s": f"{0.75 * stall:.0f}",
    }


def start_head(
    ip: str = "",
    port: int = DEFAULT_PORT,
    *,
    interface: str = "",
    flags: Sequence[str] = (),
    allow_public: bool = False,
) -> Node:
    """Start a cluster's head on this machine, and return once it runs.

    ``flags`` are more of ``ray start``.

    Raises:
        ConfigError: An address, an interface or a token that does not do.
        GroupError: Ray runs here already, a port is taken, or Ray did not start.
    """
    _require_none_here()
    own = head_interface(ip, interface)
    token = checked_token(own_token(), TOKEN) if own_token() else kept_token()
    token = token or secrets.token_hex(32)
    dashboard = ("--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD_PORT}")
    node = _plan(own, own.address, port, ("--head", *dashboard, *flags), allow_public)
    keep_token(token)
    # Machines that join read this one's versions there.
    row = to_json(node_identity())
    return _start_ray(node, lambda node: ask_store(node.ray_address, row, token))


def join(
    head: str,
    *,
    interface: str = "",
    flags: Sequence[str] = (),
    allow_public: bool = False,
    rejoin: bool = False,
    ask_token: Callable[[], str] = str,
) -> Node:
    """Let this machine join the cluster of a head at HOST:PORT, and return once it has.

    ``flags`` are more of ``ray start``; ``ask_token`` is called when this machine knows no token.

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
    # Join; the head must reach this machine, too.
    node = _start_ray(node, _check_reached)
    if rejoin:
        script = "from distrlcc.cluster.cluster import rejoin; rejoin()"
        node = replace(node, rejoiner=_leave_behind([sys.executable, "-c", script], node))
        write_state(node)
    return node


def rejoin() -> None:
    """Join again whenever Ray has ended here; runs in a process that ``join`` leaves behind."""
    while True:
        time.sleep(limits().retry)
        node = read_state()
        if node is None or node.process.alive():
            continue
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        _kill_rest()
        try:
            _check_versions(node.ray_address, kept_token())
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
        _wait(lambda: not node.process.alive(), limits().stop)
    # Then whatever is left of it is killed.
    if remaining := _kill_rest():
        numbers = ", ".join(str(process.pid) for process in remaining)
        raise GroupError(f"processes {numbers} do not end even when killed")
    with suppress(OSError):
        if node is not None and POINTER.read_text().strip() == node.ray_address:
            POINTER.unlink()
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
    address, found = resolve(ip) if ip else "", interfaces()
    chosen = [
        each
        for each in found
        if name in ("", each.name)
        and (each.address == address if ip else name or not each.address.startswith("127."))
    ]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(map(str, found)) or "none"
    if ip or name:
        asked = " ".join(filter(None, (ip and f"--ip {ip}", name and f"--interface {name}")))
        raise ConfigError(f"{asked}: expected an address of this machine ({names})")
    if not chosen:
        raise ConfigError("this machine has no network interface that others reach; is it up?")
    raise ConfigError(
        f"the other machines could reach this one at {', '.join(map(str, chosen))}; say which "
        "with --ip or --interface"
    )


def _check_versions(head: str, token: str) -> None:
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


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), limits().call).close()
    except OSError:
        return False
    return True


def _check_reached(node: Node) -> None:
    """Have the head connect to this machine; Ray itself would give it up later."""
    port = node.port + 1  # the node manager's, where health checks arrive
    with ray_session(RayOptions(AUTO)) as ray:
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray_nodes(ray)[0].identifier, soft=False
        )
        connects = ray.remote(_connects).options(num_cpus=0, scheduling_strategy=where)
        try:
            reached = ray.get(connects.remote(node.address, port), timeout=limits().join)
        except ray.exceptions.RayError:
            reached = False
    if not reached:
        raise GroupError(
            f"the head cannot reach this machine at {node.address}:{port}; open ports "
            f"{node.ports} on both sides. Where addresses are translated (NAT), use a VPN",
            exit_code=2,
        )


def _require_none_here() -> None:
    """Check that no cluster runs here, and remove what one that has ended leaves."""
    require_ray()
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


def _start_ray(node: Node, then: Callable[[Node], object] = lambda _: None) -> Node:
    """Start Ray, and end it again if that, or what is to be done then, fails."""
    try:
        # One that was too slow to start is started once more.
        for last in (False, True):
            log_path().unlink(missing_ok=True)
            process = _leave_behind(node.command, node)
            deadline = time.monotonic() + limits().start
            while process.alive() and _STARTED not in _said() and time.monotonic() < deadline:
                time.sleep(limits().tick)
            if _STARTED in _said():
                break
            _kill_rest()
            if last or TOO_SLOW not in _said():
                raise GroupError(
                    f"Ray did not start: {_reason()} (all of it: {log_path()})", exit_code=2
                )
        since = datetime.now(UTC).isoformat(timespec="seconds")
        node = replace(node, process=process, since=since, reason="")
        write_state(node)
        then(node)
        return node
    except BaseException:
        _kill_rest()
        write_state(None)
        raise


def _leave_behind(command: list[str], node: Node) -> Process:
    """Start a process that outlives this one."""
    ports = node.ports.settings(head=True)
    environment = {
        **without_secrets(),
        **health(),
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


def _said() -> str:
    return _COLOURS.sub("", log_path().read_text(errors="replace"))


def _reason() -> str:
    """Return the line in which Ray says why it did not start."""
    lines = [line.strip() for line in _said().splitlines() if line.strip()]
    telling = [line for line in lines if re.search("[Ee]rror|failed|" + TOO_SLOW, line)]
    return (telling or lines or ["it said nothing in time"])[-1]


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; say whether it came in time."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(limits().tick)
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


def _kill_rest() -> list[Process]:
    """Kill what is left of this machine's part; return the processes that do not end in time."""

    def killed() -> bool:
        for process in _marked():
            process.signal(signal.SIGKILL)
        return not _marked()

    _wait(killed, limits().stop)
    return _marked()
