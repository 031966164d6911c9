"""The ports of a Ray cluster, all named, so that a firewall can be told of them."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from distrlcc.errors import GroupError

DEFAULT_PORT = 6379
DASHBOARD_PORT = 8265
FIRST_WORKER_PORT = 10002
LAST_WORKER_PORT = 10999


@dataclass(frozen=True)
class Port:
    """A port of a node."""

    number: int
    setting: str
    """Flag of ``ray start`` or variable that it reads; empty where it is not Ray's."""
    purpose: str
    head_only: bool = False
    peers: bool = True
    """Whether other machines connect to it."""


@dataclass(frozen=True)
class Ports:
    """Eleven ports from the first on, the same on every machine, and the workers' range."""

    first: int = DEFAULT_PORT

    @property
    def gate(self) -> int:
        """Where a machine that joins asks about versions first."""
        return self.first + 1

    @property
    def node_manager(self) -> int:
        """Where the head's health checks reach a machine."""
        return self.first + 2

    @property
    def objects(self) -> int:
        """Where objects are fetched from."""
        return self.first + 3

    def all(self) -> list[Port]:
        """Return all but the dashboard's and the workers'."""
        first = self.first
        return [
            Port(first, "--port", "the head's Ray (GCS)", head_only=True),
            Port(self.gate, "", "the head's gate", head_only=True),
            Port(self.node_manager, "--node-manager-port", "node manager"),
            Port(self.objects, "--object-manager-port", "objects"),
            Port(first + 4, "--runtime-env-agent-port", "runtime environments", peers=False),
            Port(first + 5, "--dashboard-agent-grpc-port", "dashboard's agent (gRPC)"),
            Port(first + 6, "--dashboard-agent-listen-port", "dashboard's agent (HTTP)"),
            Port(first + 7, "--metrics-export-port", "metrics"),
            Port(first + 8, "--ray-client-server-port", "the head's Ray client", head_only=True),
            Port(first + 9, "AUTOSCALER_METRIC_PORT", "autoscaler's metrics", head_only=True),
            Port(first + 10, "DASHBOARD_METRIC_PORT", "dashboard's metrics", head_only=True),
        ]

    def of(self, *, head: bool) -> list[Port]:
        """Return those of the head or of another machine."""
        return [port for port in self.all() if head or not port.head_only]

    def flags(self, *, head: bool) -> list[str]:
        """Return ``ray start``'s flags."""
        ports = [port for port in self.of(head=head) if port.setting.startswith("--")]
        named = [f"{port.setting}={port.number}" for port in ports]
        workers = [
            f"--min-worker-port={FIRST_WORKER_PORT}",
            f"--max-worker-port={LAST_WORKER_PORT}",
        ]
        return [*named, *workers]

    def environment(self) -> dict[str, str]:
        """Return the variables for those that have no flag."""
        return {port.setting: str(port.number) for port in self.all() if port.setting.isupper()}

    def __str__(self) -> str:
        return f"{self.first}-{self.first + 10} and {FIRST_WORKER_PORT}-{LAST_WORKER_PORT}"


def check_free(ports: Ports, *, head: bool) -> None:
    """See that nothing listens on a node's ports.

    Raises:
        GroupError: Something does.
    """
    taken = [port for port in ports.of(head=head) if not _is_free(port.number)]
    if taken:
        names = ", ".join(f"{port.number} ({port.purpose})" for port in taken)
        several = len(taken) > 1
        remedy = "choose others with --port" if head else "end what listens there"
        raise GroupError(
            f"port{'s' if several else ''} {names} {'are' if several else 'is'} in use on this "
            f"machine; {remedy}",
            exit_code=2,
        )


def _is_free(number: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))
            probe.listen(1)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
