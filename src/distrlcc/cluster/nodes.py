"""Every node of a Ray cluster: what it is, and a process on it that runs functions for us."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any


@dataclass(frozen=True)
class RayNode:
    """A node as the cluster's head knows it."""

    identifier: str
    address: str
    alive: bool
    is_head: bool
    cpus: float
    gpus: float
    memory_gb: float
    object_store_gb: float
    resources: dict[str, float] = field(hash=False)
    """Those that the user named."""
    object_port: int
    manager_port: int
    death: str = ""
    """Why it is gone."""


@dataclass(frozen=True)
class Failed:
    """What came of a call instead of a result."""

    reason: str


def ray_nodes(ray: Any) -> list[RayNode]:
    """Return the nodes that a cluster has, the head first, and those that left and stay away."""
    found = [_node(entry) for entry in ray.nodes()]
    alive = {node.address for node in found if node.alive}
    left = {node.address: node for node in found if node.address not in alive}
    found = [*(node for node in found if node.alive), *left.values()]
    return sorted(
        found, key=lambda node: (not node.is_head, not node.alive, ip_address(node.address))
    )


def _node(entry: Mapping[str, Any]) -> RayNode:
    has = dict(entry.get("Resources", {}))
    is_head = "node:__internal_head__" in has
    cpus, gpus, memory, store = (
        has.pop(name, 0.0) for name in ("CPU", "GPU", "memory", "object_store_memory")
    )
    return RayNode(
        identifier=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        alive=bool(entry["Alive"]),
        is_head=is_head,
        cpus=cpus,
        gpus=gpus,
        memory_gb=memory / 1e9,
        object_store_gb=store / 1e9,
        resources={
            k: v for k, v in has.items() if not k.startswith(("node:", "accelerator_type:"))
        },
        object_port=int(entry["ObjectManagerPort"]),
        manager_port=int(entry["NodeManagerPort"]),
        death=str(entry.get("DeathReasonMessage") or entry.get("DeathReason") or ""),
    )


class Probe:
    """Runs functions in a process on a node; each belongs to this package, which is there too."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run one."""
        return function(*arguments)

    def hold(self, size: int) -> list[Any]:
        """Put an object of a size in bytes into this node's store; return its reference."""
        import numpy as np  # noqa: PLC0415 - in the worker alone
        import ray  # noqa: PLC0415

        return [ray.put(np.ones(size, np.uint8))]

    def fetch(self, held: list[Any], seconds: float) -> float | None:
        """Return how long it takes to fetch another node's object, s; None if it does not come."""
        import ray  # noqa: PLC0415

        begin = time.perf_counter()
        try:
            ray.get(held[0], timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            return None
        return time.perf_counter() - begin


@contextmanager
def probes(ray: Any, nodes: list[RayNode]) -> Iterator[dict[RayNode, Any]]:
    """Start a `Probe` on each node; they are gone when the context ends."""
    from ray.util.scheduling_strategies import (  # noqa: PLC0415 - an optional extra
        NodeAffinitySchedulingStrategy,
    )

    actor = ray.remote(num_cpus=0)(Probe)
    on = {node: NodeAffinitySchedulingStrategy(node.identifier, soft=False) for node in nodes}
    made = {node: actor.options(scheduling_strategy=on[node]).remote() for node in nodes}
    try:
        yield made
    finally:
        for each in made.values():
            ray.kill(each)


def gather(ray: Any, calls: Mapping[Any, Any], seconds: float) -> dict[Any, Any]:
    """Wait for calls, given as references by any key; return a result or a `Failed` for each."""
    deadline = time.monotonic() + seconds
    results: dict[Any, Any] = {}
    for key, reference in calls.items():
        try:
            results[key] = ray.get(reference, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            results[key] = Failed(f"no answer within {seconds:.0f} s")
        except ray.exceptions.RayError as error:
            results[key] = Failed(last_line(error))
    return results


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray's, which says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def death(error: Exception) -> str:
    """Return why Ray says that an actor is gone, in a few words."""
    text = " ".join(str(error).split()).lower()
    for words, reason in (
        ("node died", "its machine is gone"),
        ("node was terminated", "its machine is gone"),
        ("unavailable", "it died or cannot be reached"),
        ("ray.kill", "it was given up"),
        ("owner", "its trainer is gone"),
        ("process", "its process died"),
    ):
        if words in text:
            return reason
    return last_line(error)
