"""State of this machine's part in a Ray cluster: its ports, its token and its process.

A machine is a network namespace of a host, so containers that share a home directory are apart.
"""

import errno
import os
import platform
import socket
from pathlib import Path

import msgspec

from distrlcc.errors import ConfigError, NoGroupError, writing
from distrlcc.files import write_atomically
from distrlcc.parallel.admission import own_token
from distrlcc.processes import Process

DEFAULT_PORT = 6379
DASHBOARD_PORT = 8265
FIRST_WORKER_PORT, LAST_WORKER_PORT = 10002, 10999
MARK = "DISTRLCC_CLUSTER"
"""Variable of all processes of this machine's part; its value is `state_folder`."""

_PORTS = (
    ("--port", "the head's Ray (GCS)", True),
    ("--node-manager-port", "node manager", False),
    ("--object-manager-port", "objects", False),
    ("--runtime-env-agent-port", "runtime environments", False),
    ("--dashboard-agent-grpc-port", "dashboard's agent (gRPC)", False),
    ("--dashboard-agent-listen-port", "dashboard's agent (HTTP)", False),
    ("--ray-client-server-port", "the head's Ray client", True),
)
"""Flag of ``ray start``, purpose, and whether only the head has it."""


def port_settings(first: int, *, head: bool) -> dict[str, int]:
    """Return the ports of the head or another machine, from the first on, by flag."""
    numbered = enumerate(_PORTS, first)
    return {name: port for port, (name, _, on_head) in numbered if head or not on_head}


def name_ports(first: int) -> str:
    """Return the ports that machines must reach of each other."""
    return f"{first}-{first + len(_PORTS) - 1} and {FIRST_WORKER_PORT}-{LAST_WORKER_PORT}"


def check_ports(first: int, *, head: bool) -> None:
    """Raise a GroupError where something listens on a port of this machine."""
    taken = []
    for port in port_settings(first, head=head).values():
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                taken.append(f"{port} ({_PORTS[port - first][1]})")
    if taken:
        remedy = "choose others with --port" if head else "end what listens there"
        raise NoGroupError(
            f"port{'s' * (len(taken) > 1)} {', '.join(taken)} in use on this machine; {remedy}"
        )


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This machine's part in a cluster."""

    address: str  # address of this machine, which its peers reach
    head: str  # address of the head
    port: int  # first of the cluster's ports
    interface: str
    command: list[str]  # ``ray start`` and its flags
    process: Process = Process(0, 0)  # the process that runs the command
    since: str = ""  # date of its start
    rejoiner: Process | None = None  # the process that joins again whenever Ray has ended here
    reason: str = ""  # why the rejoiner waits

    @property
    def is_head(self) -> bool:
        """Whether this machine is the head."""
        return self.address == self.head

    @property
    def ray_address(self) -> str:
        """HOST:PORT of the head."""
        return f"{self.head}:{self.port}"

    @property
    def rejoins(self) -> bool:
        """Whether this machine joins again by itself."""
        return self.rejoiner is not None and self.rejoiner.alive()


def state_folder() -> Path:
    """Return this machine's folder, which only its owner may read; raises OutputError."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    machine = f"{platform.node() or 'host'}-{os.stat('/proc/self/ns/net').st_ino}"
    folder = Path(home).expanduser() / "distrlcc" / "ray" / machine
    with writing(folder, "; set XDG_STATE_HOME to a folder of yours"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    return folder


def log_path() -> Path:
    """Return where ``ray start`` writes."""
    return state_folder() / "ray.log"


def token_path() -> Path:
    """Return the file with the cluster's token."""
    return state_folder() / "token"


def read_state() -> Node | None:
    """Return this machine's part in a cluster, which may have ended; None if it has none."""
    path = state_folder() / "state.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Node)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path} ({error}); remove it") from None


def write_state(node: Node | None) -> None:
    """Keep this machine's part; None removes it, except the token and the log."""
    path = state_folder() / "state.json"
    if node is None:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, msgspec.json.encode(node))


def node_here() -> Node:
    """Return this machine's part in a running cluster; raise GroupError if it has none."""
    if (node := read_state()) is None:
        raise NoGroupError(
            "this machine is in no cluster; 'distrlcc cluster start' starts one, 'distrlcc "
            "cluster join HOST:PORT' joins one"
        )
    if node.process.alive():
        return node
    why = node.reason or "Ray ended here, as it does when the head is lost or gave this machine up"
    if node.rejoins:
        raise NoGroupError(f"this machine waits to join {node.ray_address} again: {why}")
    again = "start" if node.is_head else f"join {node.ray_address}"
    raise NoGroupError(
        f"this machine's part in the cluster at {node.ray_address} has ended: {why} (see "
        f"{log_path()}); to go on: distrlcc cluster {again}"
    )


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
    token_path().unlink(missing_ok=True)
    token_path().touch(0o600)
    token_path().write_text(token)
