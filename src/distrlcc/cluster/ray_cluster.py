"""Starts, joins and stops this machine's part in a Ray cluster, and says what it is.

Traffic is authenticated by a token, but not encrypted: a private network or a VPN is needed.
"""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from distrlcc.cluster.ray_address import check_private, head_interface, parse_address
from distrlcc.cluster.ray_gate import Welcome, ask_gate
from distrlcc.cluster.ray_identity import check_node
from distrlcc.cluster.ray_keeper import START_SECONDS, STOP_SECONDS
from distrlcc.cluster.ray_ports import DEFAULT_PORT, Ports, check_free
from distrlcc.cluster.ray_session import require_ray
from distrlcc.cluster.ray_state import (
    Plan,
    State,
    forget_state,
    log_path,
    read_state,
    state_folder,
)
from distrlcc.cluster.ray_token import keep_token, kept_token, known_token
from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.interface import Interface, interface_towards, resolve
from distrlcc.parallel.token import TOKEN, checked_token, new_token, own_token

_TICK = 0.1
_PROBE_SECONDS = 1.0


@dataclass(frozen=True)
class Share:
    """What of this machine Ray may give away; None leaves it to Ray."""

    cpus: int | None = None
    gpus: int | None = None
    resources: dict[str, float] | None = None
    object_store_mb: int | None = None

    def applied(self, plan: Plan) -> Plan:
        """Return a plan with this share."""
        return replace(
            plan,
            cpus=self.cpus,
            gpus=self.gpus,
            resources=self.resources or {},
            object_store_mb=self.object_store_mb,
        )


def start_head(
    ip: str = "",
    port: int = DEFAULT_PORT,
    *,
    interface: str = "",
    share: Share = Share(),
    dashboard: bool = True,
    autoscaling_config: str = "",
    allow_public: bool = False,
) -> State:
    """Start a cluster's head on this machine, and return once it runs.

    Args:
        ip: An address of this machine that the others reach; empty where there is only one.
        port: First of its ports.
        interface: Network interface instead of an address.
        share: What Ray may give away.
        dashboard: Whether to serve Ray's dashboard, on loopback.
        autoscaling_config: File for ``ray up``.
        allow_public: Whether it may listen on a public address.

    Raises:
        ConfigError: An address, an interface or a token that does not do.
        GroupError: Ray runs here already, a port is taken, or Ray did not start.
    """
    require_ray()
    _require_none_here()
    own = head_interface(ip, interface)
    check_private(own.address, allow_public=allow_public)
    token = checked_token(own_token(), TOKEN) if own_token() else kept_token() or new_token()
    check_free(Ports(port), head=True)
    keep_token(token)
    plan = Plan(
        own.address,
        own.address,
        port,
        own.name,
        dashboard=dashboard,
        autoscaling_config=autoscaling_config,
    )
    return _run(share.applied(plan))


def join(
    head: str,
    *,
    interface: str = "",
    share: Share = Share(),
    allow_public: bool = False,
    rejoin: bool = False,
    ask_token: Callable[[], str] = str,
) -> State:
    """Let this machine join a cluster, and return once it has.

    Args:
        head: HOST:PORT of the cluster's head.
        interface: Network interface instead of the one on the route to the head.
        share: What Ray may give away.
        allow_public: Whether it may listen on a public address.
        rejoin: Whether to join again whenever the head was lost and is back.
        ask_token: Called when this machine knows no token.

    Raises:
        ConfigError: An address, an interface or a token that does not do.
        GroupError: The head is out of reach or does not fit, Ray runs here already, a port is
            taken, or Ray did not start.
    """
    require_ray()
    _require_none_here()
    host, port = parse_address(head)
    address = resolve(host)
    own = interface_towards(address, interface)
    for each in (address, own.address):
        check_private(each, allow_public=allow_public)
    if own.address == address or own.name == "lo":
        raise ConfigError(
            f"{host} is this machine itself; 'distrlcc cluster start' runs the head here, "
            "'distrlcc cluster join' is for the others"
        )
    ports = Ports(port)
    check_free(ports, head=False)
    token = known_token() or ask_token()
    if not token:
        raise ConfigError(
            f"the token of the cluster is needed: 'distrlcc cluster status --show-token' on "
            f"{host} prints the whole line, {TOKEN}=... distrlcc cluster join {head}"
        )
    welcome = meet(address, ports, token, own)
    check_node(welcome.identity)
    keep_token(token)
    return _run(share.applied(Plan(own.address, address, port, own.name, rejoin=rejoin)))


def meet(
    address: str, ports: Ports, token: str, own: Interface, *, call_back: bool = True
) -> Welcome:
    """Ask a head's gate, and see that this machine and it reach each other.

    Args:
        address: The head's.
        ports: The cluster's.
        token: The cluster's.
        own: Interface of this machine towards the head.
        call_back: Let the head try this machine's node manager port, which must be free.

    Raises:
        GroupError: They do not, or the token is another one.
    """
    try:
        port = ports.node_manager if call_back else 0
        welcome = ask_gate(address, ports.gate, token, source=own.address, call_back=port)
    except OSError as error:
        why = error.strerror or error
        if error.errno != errno.EHOSTUNREACH and _listens(address, ports.first):
            raise GroupError(
                f"a Ray cluster answers at {address}:{ports.first}, but no gate at port "
                f"{ports.gate} ({why}): start it with 'distrlcc cluster start', or open the port",
                exit_code=2,
            ) from None
        raise GroupError(
            f"no cluster answers at {address}:{ports.first} from {own} ({why}); is the address "
            f"right, 'distrlcc cluster status' well there, and are ports {ports} open?",
            exit_code=2,
        ) from None
    if welcome.seen != own.address:
        raise GroupError(
            f"the head sees this machine as {welcome.seen}, but its address is {own.address}: "
            "addresses are translated (NAT) between them, which Ray cannot do with; use a VPN",
            exit_code=2,
        )
    if not welcome.reached:
        raise GroupError(
            f"the head cannot reach this machine at {own.address}:{ports.node_manager}; open "
            f"ports {ports} here for {address}",
            exit_code=2,
        )
    return welcome


def stop() -> State:
    """End what was started on this machine, and nothing else; return what it was.

    Raises:
        GroupError: There is nothing, or it does not end.
    """
    state = read_state()
    if state is None or (state.phase == "ended" and not state.left()):
        forget_state()
        why = f" (it ended by itself: {state.reason})" if state and state.reason else ""
        raise GroupError(f"nothing to stop on this machine{why}", exit_code=2)
    if state.keeper.alive():
        state.keeper.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS + 10.0
        while state.keeper.alive() and time.monotonic() < deadline:
            time.sleep(_TICK)
    left = (read_state() or state).left() or state.left()
    for process in left:
        process.signal(signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while any(process.alive() for process in left) and time.monotonic() < deadline:
        time.sleep(_TICK)
    remaining = [str(process.pid) for process in left if process.alive()]
    if remaining:
        raise GroupError(f"processes {', '.join(remaining)} do not end even when killed")
    forget_state()
    return state


def join_line(state: State, *, show_token: bool) -> str:
    """Return the line to paste on the next machine."""
    line = f"distrlcc cluster join {state.plan.ray_address}"
    return f"{TOKEN}={kept_token()} {line}" if show_token else line


def _require_none_here() -> None:
    state = read_state()
    if state is None:
        return
    if state.keeper.alive():
        kind = "a cluster's head" if state.plan.is_head else "a member of a cluster"
        raise GroupError(
            f"this machine is {kind} already ({state.plan.ray_address}, since {state.since}); end "
            "that with: distrlcc cluster stop",
            exit_code=2,
        )
    if state.left():
        raise GroupError(
            "processes of a cluster that was killed are left here; end them with: distrlcc "
            "cluster stop",
            exit_code=2,
        )
    forget_state()


def _run(plan: Plan) -> State:
    """Start the keeper and wait until Ray runs."""
    command = [
        sys.executable, "-m", "distrlcc.cluster.ray_keeper", msgspec.json.encode(plan).decode(),
    ]  # fmt: skip
    with log_path().open("wb") as log:
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state_folder(),
            start_new_session=True,
        )
    try:
        state = _await_running(keeper)
    except BaseException:
        keeper.terminate()
        try:
            keeper.wait(STOP_SECONDS + 10.0)
        except subprocess.TimeoutExpired:
            keeper.kill()  # Ray dies with it
            keeper.wait(5.0)
        kept = read_state()
        if kept is not None and kept.keeper.pid == keeper.pid:  # another may have begun beside us
            forget_state()
        raise
    keeper.returncode = 0  # it goes on without us
    return state


def _await_running(keeper: subprocess.Popen[bytes]) -> State:
    deadline = time.monotonic() + START_SECONDS + 10.0
    while time.monotonic() < deadline:
        gone = keeper.poll() is not None
        state = read_state()
        mine = state is not None and state.keeper.pid == keeper.pid
        if state is not None and mine and state.phase == "running":
            return state
        if state is not None and mine and state.phase == "ended":
            raise GroupError(
                f"Ray did not start: {state.reason} (all of it: {log_path()})", exit_code=2
            )
        if gone:
            raise GroupError(f"the keeper did not start; see {log_path()}", exit_code=2)
        time.sleep(_TICK)
    raise GroupError(f"Ray did not start in time; see {log_path()}", exit_code=2)


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _PROBE_SECONDS).close()
    except OSError:
        return False
    return True
