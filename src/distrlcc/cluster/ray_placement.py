"""What learners and workers need of a cluster, and whether and where it has room for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distrlcc.cluster.session import require_ray
from distrlcc.errors import GroupError
from distrlcc.runs.run_config import Needs, ResourcesConfig, share_of_cores

_PLACE_SECONDS = 30.0
_FREED_SECONDS = 5.0
"""Time that a run which has just ended takes at most to free what it held."""
_POLL_SECONDS = 0.2
_PIN = 0.001
_LEAST = 0.05
"""Share of a core below which nothing is asked for by itself."""


@dataclass(frozen=True)
class Machine:
    """What a machine of the cluster has left."""

    address: str
    free: Needs

    def __str__(self) -> str:
        return f"{self.address}: {_text(self.free)}"


def fits(bundles: Sequence[Needs], strategy: str, machines: Sequence[Machine]) -> bool:
    """Say whether the machines have room for all bundles, by a strategy of Ray's.

    The greatest come first, each where most is left, or else each where least is: no proof, but Ray
    does it likewise. PACK and SPREAD are wishes, so either way will do.
    """
    if strategy == "STRICT_PACK":
        whole: Needs = {}
        for bundle in bundles:
            for name, amount in bundle.items():
                whole[name] = whole.get(name, 0.0) + amount
        return any(_holds(machine.free, whole) for machine in machines)
    orders = {"STRICT_SPREAD": (True,)}.get(strategy, (True, False))
    return any(
        _goes_in(bundles, [dict(m.free) for m in machines], most_left, strategy)
        for most_left in orders
    )


def _goes_in(bundles: Sequence[Needs], left: list[Needs], most_left: bool, strategy: str) -> bool:
    for bundle in sorted(bundles, key=lambda b: (len(b), sum(b.values())), reverse=True):
        able = [free for free in left if _holds(free, bundle)]
        if not able:
            return False
        first = sorted(able, key=lambda free: free.get("CPU", 0.0), reverse=most_left)[0]
        for name, amount in bundle.items():
            first[name] -= amount
        if strategy == "STRICT_SPREAD":
            first.clear()
    return True


def _holds(free: Mapping[str, float], needs: Needs) -> bool:
    return all(free.get(name, 0.0) >= amount - 1e-9 for name, amount in needs.items())


def free_machines() -> list[Machine]:
    """Return the cluster's machines with what is free on them."""
    ray = require_ray()
    from ray._private import state  # noqa: PLC0415

    free: dict[str, dict[str, float]] = state.available_resources_per_node()
    return [
        Machine(node["NodeManagerAddress"], _shown(free.get(node["NodeID"], {})))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _whole_machines() -> list[Machine]:
    """Return the machines as if nothing were taken."""
    return [
        Machine(node["NodeManagerAddress"], _shown(node["Resources"]))
        for node in require_ray().nodes()
        if node["Alive"]
    ]


def _shown(resources: Mapping[str, float]) -> Needs:
    hidden = ("memory", "object_store_memory")
    return {
        name: float(amount)
        for name, amount in resources.items()
        if name not in hidden and "_group_" not in name
    }


def _text(needs: Mapping[str, float]) -> str:
    return (
        ", ".join(
            f"{amount:g} {name}"
            for name, amount in sorted(needs.items())
            if not name.startswith("node:")
        )
        or "nothing"
    )


class Reservation:
    """Room for a run: learners first, then workers; what is beyond the plan takes what comes."""

    def __init__(
        self, group: Any, learners: int, learner: Needs, workers: int, worker: Needs, most: int
    ) -> None:
        """See `reserve`."""
        self._group, self.most_workers = group, most
        self._learners, self._learner = learners, learner
        self._workers, self._worker = workers, worker

    def learner_options(self, index: int = 0) -> dict[str, Any]:
        """Return a learner's options as a Ray actor."""
        return self._bundle(index) if index < self._learners else _anywhere(self._learner)

    def worker_options(self, index: int) -> dict[str, Any]:
        """Return a worker's options as a Ray actor."""
        if index < self._workers:
            return self._bundle(self._learners + index)
        return _anywhere(self._worker)

    def _bundle(self, index: int) -> dict[str, Any]:
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            PlacementGroupSchedulingStrategy,
        )

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )
        needs = self._group.bundle_specs[index]
        return _actor_options(needs) | {"scheduling_strategy": strategy}


def _anywhere(needs: Needs) -> dict[str, Any]:
    return _actor_options(needs) | {"scheduling_strategy": "SPREAD"}


def _actor_options(needs: Mapping[str, float]) -> dict[str, Any]:
    others = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": needs.get("CPU", 0.0),
        "num_gpus": needs.get("GPU", 0.0),
        "resources": others,
    }


@contextmanager
def reserve(
    resources: ResourcesConfig, *, learners: int, workers: int, at: str = ""
) -> Iterator[Reservation]:
    """Reserve room for learners and workers on the cluster, and give it back.

    Args:
        resources: What each needs.
        learners: How many.
        workers: How many at first.
        at: Address of the machine where the first learner must be; empty: anywhere.

    Raises:
        GroupError: There is not enough room, even after a moment in which a run that has just ended
            frees its own; the message says what is free and what was asked for.
    """
    ray = require_ray()
    deadline = time.monotonic() + _FREED_SECONDS
    while True:
        machines = free_machines()
        learner, worker, bundles = _plan(resources, learners, workers, at, machines)
        if fits(bundles, resources.strategy, machines):
            break
        hopeless = not fits(bundles, resources.strategy, _whole_machines())
        if hopeless or time.monotonic() > deadline:
            asked = _demand(learners, learner, workers, worker, resources.strategy, at)
            raise _no_room(asked, machines)
        time.sleep(_POLL_SECONDS)
    group = ray.util.placement_group(bundles, strategy=resources.strategy)
    try:
        if not group.wait(_PLACE_SECONDS):
            asked = _demand(learners, learner, workers, worker, resources.strategy, at)
            raise _no_room(asked, free_machines())
        most = max(workers, resources.max_workers)
        yield Reservation(group, learners, learner, workers, worker, most)
    finally:
        ray.util.remove_placement_group(group)


def _plan(
    resources: ResourcesConfig, learners: int, workers: int, at: str, machines: Sequence[Machine]
) -> tuple[Needs, Needs, list[Needs]]:
    """Return what a learner and a worker need, and all their bundles, learners first."""
    cores = sum(machine.free.get("CPU", 0.0) for machine in machines)
    named = learners * resources.learner_cpus + workers * resources.worker_cpus
    unnamed = learners * (not resources.learner_cpus) + workers * (not resources.worker_cpus)
    cpus = share_of_cores(cores, named, unnamed)
    while True:
        learner, worker = resources.learner(cpus), resources.worker(cpus)
        bundles = [dict(learner) for _ in range(learners)] + [dict(worker) for _ in range(workers)]
        if at:
            bundles[0][f"node:{at}"] = _PIN
        if not unnamed or cpus <= _LEAST or fits(bundles, resources.strategy, machines):
            return learner, worker, bundles
        cpus = max(round(0.8 * cpus, 3), _LEAST)  # machines of unequal size


def _demand(
    learners: int, learner: Needs, workers: int, worker: Needs, strategy: str, at: str
) -> str:
    here = f", the first on {at}" if at else ""
    parts = [f"{learners} x ({_text(learner)}) to learn{here}"]
    if workers:
        parts.append(f"{workers} x ({_text(worker)}) to act")
    return f"{' and '.join(parts)}, {strategy}"


def _no_room(asked: str, machines: Sequence[Machine]) -> GroupError:
    free = "; ".join(map(str, machines))
    return GroupError(
        f"the cluster has no room for {asked}. Free: {free}. Ask for less (--worker-cpus, "
        "--workers, --strategy) or let machines join with: distrlcc cluster join",
        exit_code=2,
    )
