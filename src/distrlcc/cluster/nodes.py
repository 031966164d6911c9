"""The nodes of a Ray cluster, as its head knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any


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
    resources: dict[str, float] = field(hash=False)
    """Resources that the user named."""
    object_port: int
    manager_port: int
    death: str = ""
    """Why it is gone."""


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
