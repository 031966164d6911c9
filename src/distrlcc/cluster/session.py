"""A connection to Ray: to a cluster that runs, or to one that it starts on this machine."""

import logging
import os
import platform
import re
import secrets
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Any

from distrlcc.cluster import state
from distrlcc.errors import ConfigError, NoGroupError
from distrlcc.extras import require
from distrlcc.limits import limits
from distrlcc.parallel.admission import Identity, decode
from distrlcc.parallel.interface import LOOPBACK, check_place
from distrlcc.processes import keeper
from distrlcc.runs.identity import identity, package_version
from distrlcc.runs.stopper import SIGNALS

AUTO = "auto"  # address of the cluster that runs on this machine
TOO_SLOW = "timed out during startup"
"""Ray says so when a node took more than 30 s, which no setting of its changes: try again."""
_MEMORY = re.compile(
    r"low on memory.{1,40}\(IP: ([^,)]+).{1,300}? was ([\d.]+ ?\w+)(?: used)? / ([\d.]+ ?\w+)", re.S
)
_FOLDER = Path("/tmp/ray")  # Ray's own, unless variables say another
KEPT = "DISTRLCC_KEPT"  # variable by which a keeper knows what it has to end
_LONGEST_FOLDER = 41  # characters of TMPDIR that leave room for the names of Ray's sockets
_LOCAL_STORE_BYTES = 200_000_000
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # By default a busy machine hardly runs Ray's workers, and they are given up as silent.
    "RAY_worker_niceness": "0",
    # Members report what is to be shown: not all that processes print, nor a page on each death.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # Metrics would be open to all, without the token.
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
    "SPT_NOENV": "1",  # a process that renames itself keeps its environment, and so its mark
}


def pointers() -> list[Path]:
    """Return where Ray may have noted which cluster ``ray.init(address="auto")`` finds."""
    named = (os.environ.get(name) for name in ("RAY_TMPDIR", "TMPDIR"))
    folders = [*(Path(name) / "ray" for name in named if name), _FOLDER]
    return [folder / "ray_current_cluster" for folder in folders]


def require_ray() -> Any:
    """Return the module ray; raises ConfigError if it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    require("ray")
    import ray  # noqa: PLC0415 - an optional extra

    return ray


@contextmanager
def ray_session(address: str = "", cpus: float | None = None) -> Iterator[Any]:
    """Connect to Ray, yield the module, and leave nothing behind.

    The address is `AUTO`, or HOST:PORT of a cluster's head; empty starts Ray here for the session,
    with so many cores to give away, or all. Raises ConfigError if Ray is not installed, GroupError
    if there is no such cluster, or it refuses the connection.
    """
    ray = require_ray()
    if ray.is_initialized():
        raise ConfigError("this process is connected to Ray already: call ray.shutdown() before")
    arguments = {"namespace": "distrlcc", "logging_level": logging.ERROR, "log_to_driver": False}
    # Join a cluster, or start a Ray that ends with this process.
    head = _resolve(address) if address else LOOPBACK
    with ExitStack() as stack:
        if address:
            arguments["address"] = head
            told = _credentials(head)
        else:
            check_place()
            arguments |= {"address": "local", "include_dashboard": False, "num_cpus": cpus}
            arguments |= {"object_store_memory": _LOCAL_STORE_BYTES, "_node_ip_address": head}
            if len(gettempdir()) > _LONGEST_FOLDER:
                arguments["_temp_dir"] = str(_FOLDER)
            # Without a token in its environment Ray would leave one in ~/.ray, for all that follow.
            token = secrets.token_hex(32)
            told = {KEPT: uuid.uuid4().hex, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
            # End what has this mark when this process dies, and in the end.
            words, nothing = keeper(f"{KEPT}={told[KEPT]}", limits().stop), subprocess.DEVNULL
            started = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, process_group=0
            )
            stack.enter_context(started)
            # Keep signals to this process's group, which first saves, from what Ray starts.
            services, plain = ray._private.services, ray._private.services.ConsolePopen
            stack.callback(setattr, services, "ConsolePopen", plain)
            services.ConsolePopen = partial(plain, process_group=0)
        stack.enter_context(_environment(ray, told | bound_to(parse_address(head)[0])))
        # Connect, and keep SIGTERM; a local Ray that was slow to start is started once more.
        handler = signal.getsignal(signal.SIGTERM)
        for last in (False, True):
            try:
                ray.init(**arguments)
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)
                break
            except Exception as error:  # Ray raises that class itself
                _shut_down(ray)
                if last or TOO_SLOW not in str(error):
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    where = address or "this machine"
                    raise NoGroupError(f"Ray at {where} refused: {reason}") from None
        stack.callback(_shut_down, ray)
        yield ray


def bound_to(head: str) -> dict[str, str]:
    """Return the variable with which Ray takes loopback for an address, if the head is there.

    Otherwise Ray replaces it by the machine's own address. At loopback it listens there alone.
    """
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(head != LOOPBACK))}


@contextmanager
def _environment(ray: Any, told: dict[str, str]) -> Iterator[None]:
    """Tell Ray variables, and leave the environment as it was."""
    before, constants = dict(os.environ), ray._private.ray_constants

    def read() -> None:
        """Read it again: Ray did so when it was imported."""
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
        name = constants.ENABLE_RAY_CLUSTERS_ENV_VAR
        constants.ENABLE_RAY_CLUSTER = os.environ.get(name, "1") == "1"

    os.environ.update(told)
    read()
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        read()


def _shut_down(ray: Any) -> None:
    """End the connection; a signal must not interrupt it, or Ray stays."""
    if threading.current_thread() is not threading.main_thread():
        ray.shutdown()
        return
    # Ray's own parts send SIGTERM, too, as they end; its handler would make 15 of our exit code.
    old = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        ray.shutdown()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler or signal.SIG_DFL)


def dead_part(ray: Any) -> str:
    """Return the part of our own Ray that died and that a run needs; its own wait takes 60 s."""
    dead = [name for name, _ in ray._private.worker._global_node.dead_processes()]
    return next((name for name in dead if name in {"gcs_server", "raylet"}), "")


def _resolve(address: str) -> str:
    if address != AUTO:
        return address
    if state.read_state() is not None:
        return state.node_here().ray_address
    if given := os.environ.get("RAY_ADDRESS"):
        return given
    for path in pointers():
        with suppress(OSError):
            return path.read_text().strip()
    raise NoGroupError(
        "no Ray cluster runs on this machine; start one with: distrlcc cluster start, or leave "
        "--address out"
    )


def _credentials(address: str) -> dict[str, str]:
    """Return Ray's variables by which a cluster admits this process.

    A cluster that ``distrlcc cluster start`` did not start may need no token. This machine must
    then give none, even if it keeps one: its own processes would refuse each other.
    """
    node = state.read_state()
    here = node is not None and node.ray_address == address
    token = state.kept_token() if here else state.known_token()
    users_own = not token and "RAY_AUTH_MODE" in os.environ
    if ask_store(address, "") is not None or users_own:
        return {}
    read_row(address, token)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST`` or ``HOST:PORT``; raises ConfigError if it is neither."""
    host, colon, port = text.rpartition(":")
    host, port = (host, port) if colon else (text, str(state.DEFAULT_PORT))
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65527:
        raise ConfigError(
            f"{text!r}: expected HOST:PORT of the head, as 10.0.0.1:{state.DEFAULT_PORT}"
        )
    return host, int(port)


def read_row(address: str, token: str) -> dict[str, str]:
    """Return the versions that a cluster's head wrote for machines that join; empty: it wrote none.

    Raises DistrlccError: see `ask_store`; or the token differs, or the row is malformed.
    """
    if (row := ask_store(address, token)) is None:
        raise NoGroupError(
            f"the cluster at {address} has another token than this machine; give its own: "
            "'distrlcc cluster status --show-token' on the head shows it"
        )
    versions: dict[str, str] = decode(row or b"{}", Identity, f"the head at {address}")
    versions.pop("config", "")  # a head has none; a stranger's need not be TOML
    return versions


def ask_store(address: str, token: str, row: bytes = b"") -> bytes | None:
    """Write a row into a head's internal store, or return it; None if the head has another token.

    ConfigError: an invalid address, or no Ray here; GroupError: no Ray answers there in time.
    """
    host, port = parse_address(address)
    require_ray()
    # Ray's own client may try forever to reach what is no head.
    import grpc  # noqa: PLC0415 - it comes with Ray
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc  # noqa: PLC0415

    messages: Any = gcs_service_pb2  # whose classes are made when it is imported
    told = {"metadata": (("authorization", f"Bearer {token}"),), "timeout": limits().call}
    name = {"key": b"identity", "namespace": b"distrlcc"}
    with grpc.insecure_channel(f"{host}:{port}", (("grpc.enable_http_proxy", 0),)) as channel:
        store = gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel)
        try:
            if row:
                put = messages.InternalKVPutRequest(**name, value=row, overwrite=True)
                store.InternalKVPut(put, **told)
                return row
            get = messages.InternalKVGetRequest(**name)
            return bytes(store.InternalKVGet(get, **told).value)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return None
            reason = error.details().rpartition(": ")[2]
    raise NoGroupError(
        f"no Ray cluster answers at {host}:{port} ({reason}); does 'distrlcc cluster status' work "
        f"there, are ports {state.name_ports(port)} open, and is no other program there?"
    )


def node_identity() -> dict[str, str]:
    """Return the versions that must agree; Ray compares Python's to the patch level."""
    return identity(None, python=platform.python_version(), ray=package_version("ray"))


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray's, which says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def death(error: Exception) -> str:
    """Return why Ray says that an actor is gone, in a few words."""
    text = " ".join(str(error).split())
    if told := _of_memory(text):
        return told
    for words, reason in (
        ("node died", "its machine is gone"),
        ("node was terminated", "its machine is gone"),
        ("unavailable", "it died or cannot be reached"),
        ("ray.kill", "it was given up"),
        ("owner", "its trainer is gone"),
        ("process", "its process died"),
    ):
        if words in text.lower():
            return reason
    return last_line(error)


def memory_kills(actor: Any) -> list[str]:
    """Return a line for each actor that Ray's memory monitor killed, oldest first.

    An actor that Ray starts again does not say why it was restarted; Ray's table of processes does.
    """
    require_ray()
    from ray._private.state import state as tables  # noqa: PLC0415
    from ray.core.generated import gcs_pb2  # noqa: PLC0415

    table: Any = gcs_pb2  # whose classes are made when it is imported
    told = []
    with suppress(Exception):  # Ray is gone, or has another table in this version
        kind, number = re.findall(r"\w+", repr(actor))[1:3]  # Actor(RayRank, 3081ff…)
        # A process that has not become the actor yet bears the name of what it was to make.
        made = f"job ID={number[-8:]}", f"task name={kind}.__init__"
        packed = tables._connect_and_get_accessor().get_worker_table()
        rows = map(table.WorkerTableData.FromString, packed)
        for row in sorted(rows, key=lambda row: row.end_time_ms):
            parts = row.exit_detail.split("Selected to kill: ")[1:]
            own = next((part for part in parts if f"pid={row.pid}," in part), "")
            if number in own or all(words in own for words in made):
                told.append(_of_memory(row.exit_detail))
    return list(filter(None, told))


def why_gone(actor: Any, known: int, otherwise: str) -> tuple[str, int]:
    """Return why an actor is gone, and how often the memory monitor has killed it so far.

    ``known``: how often before; ``otherwise``: Ray's reason, which misses memory if it restarts it.
    """
    deadline = monotonic() + limits().heartbeat  # the table is written a little later
    while len(kills := memory_kills(actor)) <= known and monotonic() < deadline:
        sleep(limits().tick)
    return (kills[-1] if len(kills) > known else otherwise), len(kills)


def _of_memory(text: str) -> str:
    """Return what to say of a death by Ray's memory monitor; empty if it was another."""
    if (found := _MEMORY.search(text)) is None:
        return ""
    host, used, limit = found.groups()
    return (
        f"killed by Ray's memory monitor on {host}: {used} of {limit} in use; run fewer processes "
        "or environments there, or raise RAY_memory_usage_threshold where Ray starts"
    )


@dataclass(frozen=True)
class RayNode:
    """A node; what it offers is 0 once it is gone."""

    identifier: str
    address: str
    alive: bool
    is_head: bool
    cpus: float
    gpus: float
    memory_gb: float
    object_store_gb: float
    resources: dict[str, float] = field(hash=False)  # resources that the user named
    object_port: int
    manager_port: int
    death: str = ""  # why it is gone


def ray_nodes(ray: Any) -> list[RayNode]:
    """Return the nodes that a cluster has, the head first, and those that left and stay away."""
    found = [_node(entry) for entry in ray.nodes()]
    alive = {node.address for node in found if node.alive}
    left = {node.address: node for node in found if node.address not in alive}
    return sorted(
        [*(node for node in found if node.alive), *left.values()],
        key=lambda node: (not node.is_head, not node.alive, ip_address(node.address)),
    )


def _node(entry: dict[str, Any]) -> RayNode:
    has = dict(entry.get("Resources", {}))
    is_head = "node:__internal_head__" in has
    cpus, gpus, memory, store = (
        has.pop(name, 0.0) for name in ("CPU", "GPU", "memory", "object_store_memory")
    )
    hidden = ("node:", "accelerator_type:")
    return RayNode(
        identifier=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        alive=bool(entry["Alive"]),
        is_head=is_head,
        cpus=cpus,
        gpus=gpus,
        memory_gb=memory / 1e9,
        object_store_gb=store / 1e9,
        resources={name: amount for name, amount in has.items() if not name.startswith(hidden)},
        object_port=int(entry["ObjectManagerPort"]),
        manager_port=int(entry["NodeManagerPort"]),
        death=str(entry.get("DeathReasonMessage") or entry.get("DeathReason") or ""),
    )
