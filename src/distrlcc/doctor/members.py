"""The machines that a doctor has at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distrlcc.cluster.nodes import RayNode, gather
from distrlcc.cluster.state import Ports
from distrlcc.doctor.row import Row, judged


@dataclass
class Members:
    """The machines, and what is known of them so far."""

    ray: Any
    head: str
    """Its name or address."""
    ports: Ports
    nodes: list[RayNode]
    probes: dict[RayNode, Any]
    """A process on each."""
    rows: list[Row] = field(default_factory=list)

    def each(self, function: Callable[..., Any], seconds: float, *arguments: Any) -> dict[Any, Any]:
        """Run a function on all machines at once; each gives a result or a `Failed`."""
        calls = {node: self.probes[node].call.remote(function, *arguments) for node in self.nodes}
        return gather(self.ray, calls, seconds)

    def add(self, check: str, node: RayNode, found: str, **remedies: str) -> None:
        """Add a row."""
        self.rows.append(judged(check, node.address, found, **remedies))
