"""What is kept of this machine's part in a Ray cluster: its plan and its processes.

A machine is a network namespace of a host: containers and test hosts that share a home are apart.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from distrlcc.cluster.ray_ports import DEFAULT_PORT, Ports
from distrlcc.errors import ConfigError, GroupError, OutputError
from distrlcc.files import write_atomically
from distrlcc.processes import Process


@dataclass(frozen=True)
class Plan:
    """What runs on this machine."""

    address: str
    """Of this machine, which its peers reach."""
    head: str
    """Address of the head; the machine's own on the head."""
    port: int = DEFAULT_PORT
    """First of the cluster's ports."""
    interface: str = ""
    cpus: int | None = None
    """None: those that there are."""
    gpus: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    object_store_mb: int | None = None
    """Memory for objects, MB; None leaves it to Ray."""
    dashboard: bool = True
    autoscaling_config: str = ""
    """File that ``ray up`` wrote on the head."""
    rejoin: bool = False
    """Join again whenever the head, once lost, is back."""

    @property
    def is_head(self) -> bool:
        """Whether this machine is the head."""
        return self.address == self.head

    @property
    def ports(self) -> Ports:
        """The cluster's ports."""
        return Ports(self.port)

    @property
    def ray_address(self) -> str:
        """The head's, as Ray wants it."""
        return f"{self.head}:{self.port}"


@dataclass(frozen=True)
class State:
    """This machine's part in a cluster, as its keeper last wrote it."""

    plan: Plan
    keeper: Process
    since: str
    """Date of its start."""
    phase: str = "starting"
    """``starting``, ``running``, ``waiting`` to join again, or ``ended``."""
    reason: str = ""
    """Why it ended or waits."""
    processes: list[Process] = field(default_factory=list)
    """All that the keeper started, and what those did."""

    def left(self) -> list[Process]:
        """Return the processes that are still there."""
        return [process for process in [self.keeper, *self.processes] if process.alive()]


def state_folder() -> Path:
    """Return this machine's folder, which only its owner may read.

    Raises:
        OutputError: It cannot be made.
    """
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    machine = f"{platform.node() or 'host'}-{os.stat('/proc/self/ns/net').st_ino}"
    folder = Path(home).expanduser() / "distrlcc" / "ray" / machine
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}: {error.strerror}; set XDG_STATE_HOME to a folder of yours"
        ) from None
    return folder


def read_state() -> State | None:
    """Return what is kept, if anything is.

    Raises:
        ConfigError: It cannot be read.
    """
    path = state_folder() / "state.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path} ({error}); remove it") from None


def write_state(state: State) -> None:
    """Keep it."""
    write_atomically(state_folder() / "state.json", msgspec.json.encode(state))


def forget_state() -> None:
    """Keep nothing but the token and the logs."""
    (state_folder() / "state.json").unlink(missing_ok=True)


def log_path() -> Path:
    """Return where the keeper and ``ray start`` write."""
    return state_folder() / "ray.log"


def node_here() -> State:
    """Return this machine's part in a cluster, which runs.

    Raises:
        GroupError: There is none, or it ended.
    """
    state = read_state()
    if state is None:
        raise GroupError(
            "this machine is in no cluster; 'distrlcc cluster start' starts one, 'distrlcc "
            "cluster join HOST:PORT' joins one",
            exit_code=2,
        )
    again = "start" if state.plan.is_head else f"join {state.plan.ray_address}"
    if state.phase == "ended":
        raise GroupError(
            f"this machine's part in the cluster at {state.plan.ray_address} has ended: "
            f"{state.reason}; to go on: distrlcc cluster {again}",
            exit_code=2,
        )
    if state.phase == "waiting" and state.keeper.alive():
        raise GroupError(
            f"this machine waits to join {state.plan.ray_address} again: {state.reason}",
            exit_code=2,
        )
    if not state.keeper.alive():
        raise GroupError(
            f"the keeper of the cluster at {state.plan.ray_address} (process {state.keeper.pid}) "
            f"was killed; clean up with 'distrlcc cluster stop', then: distrlcc cluster {again}",
            exit_code=2,
        )
    return state
