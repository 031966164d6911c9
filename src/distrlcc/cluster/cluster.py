"""Starts, joins and leaves a Ray cluster on this machine: a thin layer over ``ray start --block``.

Ray's own processes watch each other and end together. Traffic is authenticated by a token, but not
encrypted: a private network or a VPN is needed.
"""

import ipaddress
import json
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

from distrlcc.cluster import session, state
from distrlcc.cluster.state import FIRST_WORKER_PORT, LAST_WORKER_PORT, MARK, Node
from distrlcc.errors import ConfigError, DistrlccError, GroupError, NoGroupError
from distrlcc.limits import limits, wait_until
from distrlcc.parallel.admission import TOKEN, checked_token, own_token
from distrlcc.parallel.interface import (
    Interface,
    interface_towards,
    interfaces,
    is_loopback,
    resolve,
)
from distrlcc.processes import Process, find_process, keeper, kill_marked, marked
from distrlcc.runs.identity import differences

_STARTED = "Ray runtime started."
_OF_OTHERS = {TOKEN, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"}
"""Variables with tokens and addresses of other clusters."""


def health() -> dict[str, str]:
    """Return Ray's variables by which a cluster gives up a machine, after `Limits.stall`, 5 checks.

    A machine notices after half of that that its head does not answer, and ends Ray after another
    three quarters. Ray's defaults take 67 s there, and several minutes here.
    """
    stall = limits().stall
    return {
        "RAY_health_check_period_ms": f"{50 * stall:.0f}",
        "RAY_health_check_timeout_ms": f"{150 * stall:.0f}",
        "RAY_health_check_failure_threshold": "5",
        "RAY_grpc_client_keepalive_timeout_ms": f"{500 * stall:.0f}",
        "RAY_gcs_rpc_server_reconnect_timeout_s": f"{0.75 * stall:.0f}",
    }


def start_head(
    ip: str = "",
    port: int = state.DEFAULT_PORT,
    *,
    interface: str = "",
    flags: Sequence[str] = (),
    allow_public: bool = False,
) -> Node:
    """Start a cluster's head on this machine, and return once it runs.

    ``flags`` are more of ``ray start``. Raises ConfigError at an invalid address, interface or
    token; GroupError if Ray runs here already, a port is taken, or Ray did not start.
    """
    _require_none_here()
    own = head_interface(ip, interface)
    token = checked_token(own_token()) if own_token() else state.kept_token()
    token = token or secrets.token_hex(32)
    dashboard = ("--dashboard-host=127.0.0.1", f"--dashboard-port={state.DASHBOARD_PORT}")
    node = _plan(own, own.address, port, ("--head", *dashboard, *flags), allow_public)
    state.keep_token(token)
    # Machines that join read this one's versions there.
    row = json.dumps(session.node_identity()).encode()
    return _start_ray(node, lambda node: session.ask_store(node.ray_address, token, row))


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
    Raises ConfigError at an invalid address, interface or token; GroupError as `start_head` does,
    or if the head is out of reach or does not fit.
    """
    _require_none_here()
    # Find the way to the head.
    host, port = session.parse_address(head)
    address = resolve(host)
    own = interface_towards(address, interface)
    if own.address == address or own.name == "lo":
        raise ConfigError(
            f"{host} is this machine itself; 'distrlcc cluster start' runs the head here, "
            "'distrlcc cluster join' is for the others"
        )
    node = _plan(own, address, port, (f"--address={address}:{port}", *flags), allow_public)
    # Compare token and versions before Ray starts here.
    token = state.known_token() or ask_token()
    if not token:
        raise ConfigError(
            f"the token of the cluster is needed: 'distrlcc cluster status --show-token' on "
            f"{host} prints the whole line, {TOKEN}=... distrlcc cluster join {head}"
        )
    _check_versions(node.ray_address, token)
    state.keep_token(token)
    # Join; the head must reach this machine, too.
    node = _start_ray(node, _check_reached)
    if rejoin:
        script = "from distrlcc.cluster.cluster import rejoin; rejoin()"
        node = replace(node, rejoiner=_leave_behind([sys.executable, "-c", script], node))
        state.write_state(node)
    return node


def rejoin() -> None:
    """Join again whenever Ray has ended here; runs in a process that ``join`` leaves behind."""
    while True:
        time.sleep(limits().retry)
        node = state.read_state()
        if node is None or node.process.alive():
            continue
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        _kill_rest()
        try:
            _check_versions(node.ray_address, state.kept_token())
            _start_ray(node)
        except (DistrlccError, OSError) as error:
            state.write_state(replace(node, reason=str(error)))


def stop() -> Node | None:
    """End and return what was started here; None: a killed cluster's rest; GroupError: cannot."""
    node = state.read_state()
    if not marked(_mark()):
        state.write_state(None)
        ended = f" (the cluster at {node.ray_address} has ended by itself)" if node else ""
        raise NoGroupError(f"nothing to stop on this machine{ended}")
    # Ray ends in good order; the rejoiner would start it again.
    if node is not None:
        if node.rejoiner is not None:
            node.rejoiner.signal(signal.SIGKILL)
        node.process.signal(signal.SIGTERM)
        wait_until(lambda: not node.process.alive(), limits().stop)
    # Then whatever is left of it is killed.
    if remaining := _kill_rest():
        numbers = ", ".join(str(process.pid) for process in remaining)
        raise GroupError(f"processes {numbers} do not end even when killed")
    for path in session.pointers():
        with suppress(OSError):
            if node is not None and path.read_text().strip() == node.ray_address:
                path.unlink()
    state.write_state(None)
    return node


def join_line(node: Node, *, show_token: bool) -> str:
    """Return the line to paste on the next machine."""
    line = f"distrlcc cluster join {node.ray_address}"
    return f"{TOKEN}={state.kept_token()} {line}" if show_token else line


def head_interface(ip: str, name: str) -> Interface:
    """Return the interface that a head listens on, never a guess; ConfigError: none, or several."""
    address, found = resolve(ip) if ip else "", interfaces()
    chosen = [each for each in found if name in ("", each.name)]
    if ip:
        chosen = [each for each in chosen if each.address == address]
    elif not name:
        chosen = [each for each in chosen if not each.address.startswith("127.")]
    if len({each.name for each in chosen}) == 1:  # of its several addresses the first
        return chosen[0]
    if ip or name:
        names = ", ".join(map(str, found)) or "none"
        asked = " ".join(filter(None, (ip and f"--listen {ip}", name and f"--interface {name}")))
        raise ConfigError(f"{asked}: expected an address of this machine ({names})")
    names = ", ".join(map(str, chosen)) or "no address; is a network interface up?"
    raise ConfigError(
        f"say with --listen or --interface where the other machines reach this one: {names}"
    )


def addresses() -> list[Interface]:
    """Return this machine's addresses: also several of one interface, and those of IPv6."""
    found = interfaces()
    with suppress(FileNotFoundError):  # no IPv6 in this kernel
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            number, *_, name = line.split()
            found.append(Interface(name, str(ipaddress.IPv6Address(int(number, 16)))))
    return found


def _check_versions(head: str, token: str) -> None:
    if not (row := session.read_row(head, token)):
        raise NoGroupError(
            f"the cluster at {head} was not started by 'distrlcc cluster start', so versions "
            "cannot be compared; 'ray start' joins it"
        )
    if table := differences(row, session.node_identity()):
        raise NoGroupError(
            "this machine does not match the head ('master' below); install the same on both:\n"
            f"{table}"
        )


def _connect(address: str, port: int) -> None:
    socket.create_connection((address, port), limits().call).close()


def _check_reached(node: Node) -> None:
    """Have the head connect to this machine; Ray itself would give it up later."""
    port = node.port + 1  # the node manager's, where health checks arrive
    with session.ray_session(session.AUTO) as ray:
        where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            session.ray_nodes(ray)[0].identifier, soft=False
        )
        connect = ray.remote(_connect).options(num_cpus=0, scheduling_strategy=where)
        try:
            ray.get(connect.remote(node.address, port), timeout=limits().join)
        except ray.exceptions.RayError:
            raise NoGroupError(
                f"the head cannot reach this machine at {node.address}:{port}; open ports "
                f"{state.name_ports(node.port)} on both sides. Where addresses are translated "
                "(NAT), use a VPN"
            ) from None


def _require_none_here() -> None:
    """Check that no cluster runs here, and remove what one that has ended leaves."""
    session.require_ray()
    node = state.read_state()
    if node is not None and (node.process.alive() or node.rejoins):
        kind = "a cluster's head" if node.is_head else "a member of a cluster"
        raise NoGroupError(
            f"this machine is {kind} already ({node.ray_address}, since {node.since}); end "
            "that with: distrlcc cluster stop"
        )
    _kill_rest()
    state.write_state(None)


def _plan(own: Interface, head: str, port: int, flags: Sequence[str], allow_public: bool) -> Node:
    for address in (head, own.address):
        if ipaddress.ip_address(address).is_global and not allow_public:
            raise ConfigError(
                f"{address} is a public address, and what Ray sends is not encrypted: use a "
                "private network or a VPN, or give --allow-public"
            )
    # Ray listens on every interface, except a head on loopback.
    for each in [] if allow_public or is_loopback(head) else addresses():
        if ipaddress.ip_address(each.address).is_global:
            raise ConfigError(
                f"{each} is a public address, where Ray listens as well: close ports "
                f"{state.name_ports(port)} on that interface, then give --allow-public"
            )
    on_head = own.address == head
    state.check_ports(port, head=on_head)
    workers = {"--min-worker-port": FIRST_WORKER_PORT, "--max-worker-port": LAST_WORKER_PORT}
    ports = state.port_settings(port, head=on_head) | workers
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += ["--log-color=false", f"--node-ip-address={own.address}", *flags]
    command += [f"{name}={number}" for name, number in ports.items()]
    kept = keeper(f"{session.KEPT}={secrets.token_hex(8)}", limits().stop, *command)
    return Node(own.address, head, port, own.name, kept)


def _start_ray(node: Node, then: Callable[[Node], object] = lambda _: None) -> Node:
    """Start Ray, and end it again if that, or ``then``, fails."""
    try:
        # One that was too slow to start is started once more.
        for last in (False, True):
            state.log_path().unlink(missing_ok=True)
            process = _leave_behind(node.command, node)
            deadline = time.monotonic() + limits().start
            while process.alive() and _STARTED not in _said() and time.monotonic() < deadline:
                time.sleep(limits().tick)
            if _STARTED in _said():
                break
            _kill_rest()
            if last or session.TOO_SLOW not in _said():
                raise NoGroupError(
                    f"Ray did not start: {_reason()} (all of it: {state.log_path()})"
                )
        since = datetime.now(UTC).isoformat(timespec="seconds")
        node = replace(node, process=process, since=since, reason="")
        state.write_state(node)
        then(node)
        return node
    except BaseException:
        _kill_rest()
        state.write_state(None)
        raise


def _leave_behind(command: list[str], node: Node) -> Process:
    environment = {
        **{name: value for name, value in os.environ.items() if name not in _OF_OTHERS},
        **health(),
        **session.bound_to(node.head),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(state.token_path()),
        "PYTHONUNBUFFERED": "1",
        MARK: str(state.state_folder()),
    }
    with state.log_path().open("ab") as log:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state.state_folder(),
            start_new_session=True,
        )
    child.returncode = 0  # it goes on without us
    return find_process(child.pid) or Process(child.pid, 0)


def _said() -> str:
    return state.log_path().read_text(errors="replace")


def _reason() -> str:
    lines = [line.strip() for line in _said().splitlines() if line.strip()]
    telling = [line for line in lines if re.search("[Ee]rror|failed|" + session.TOO_SLOW, line)]
    return (telling or lines or ["no output in time"])[-1]


def _mark() -> str:
    """Return what all processes of this machine's part have, its orphans too."""
    return f"{MARK}={state.state_folder()}"


def _kill_rest() -> list[Process]:
    """Kill what is left of this machine's part; return the processes that do not end in time."""
    return kill_marked(_mark(), limits().stop)
