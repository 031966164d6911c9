"""Room for a run's learners and workers on a cluster, in one of Ray's placement groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distrlcc.cluster.session import dead_part, require_ray
from distrlcc.errors import NoGroupError
from distrlcc.limits import limits
from distrlcc.runs.run_config import Needs, ResourcesConfig

_PIN = 0.001
_LEAST = 0.05  # share of a core below which nothing is asked for by itself


def free_machines() -> dict[str, Needs]:
    """Return what is free on each machine of the cluster, by its address."""
    ray = require_ray()
    from ray._private import state  # noqa: PLC0415

    free = state.available_resources_per_node()
    hidden = ("memory", "object_store_memory")
    return {
        node["NodeManagerAddress"]: {
            name: amount
            for name, amount in free.get(node["NodeID"], {}).items()
            if name not in hidden and "_group_" not in name
        }
        for node in ray.nodes()
        if node["Alive"]
    }


def _text(needs: Needs) -> str:
    named = sorted(item for item in needs.items() if not item[0].startswith("node:"))
    return ", ".join(f"{amount:g} {name}" for name, amount in named) or "nothing"


@dataclass(frozen=True)
class Reservation:
    """Room on a cluster: options of each actor; those beyond the plan take what is free."""

    learners: list[dict[str, Any]]
    workers: list[dict[str, Any]]


def _options(needs: Needs, strategy: Any) -> dict[str, Any]:
    return {
        "num_cpus": needs.get("CPU", 0.0),
        "num_gpus": needs.get("GPU", 0.0),
        "resources": {k: v for k, v in needs.items() if k not in ("CPU", "GPU")},
        "scheduling_strategy": strategy,
    }


@contextmanager
def reserve(
    resources: ResourcesConfig, *, learners: int, workers: int, at: str = ""
) -> Iterator[Reservation]:
    """Reserve room for learners and workers on the cluster, and give it back.

    The first learner is at the address ``at``; empty: anywhere. Raises GroupError if Ray finds no
    room in time; the message says how much is free and how much is needed.
    """
    # Ask for a bundle for each planned process.
    ray = require_ray()
    cores = [free.get("CPU", 0.0) for free in free_machines().values()]
    named = learners * resources.learner_cpus + workers * resources.worker_cpus
    unnamed = learners * (not resources.learner_cpus) + workers * (not resources.worker_cpus)
    cpus = share_of_cores(cores, named, unnamed)
    learner, worker = resources.learner(cpus), resources.worker(cpus)
    bundles = [dict(learner) for _ in range(learners)] + [dict(worker) for _ in range(workers)]
    if at:
        bundles[0][f"node:{at}"] = _PIN
    group = ray.util.placement_group(bundles, strategy=resources.strategy)
    try:
        # A run that has just ended gives its own room back after some seconds.
        if not group.wait(2 * limits().call):
            here = f", the first on {at}" if at else ""
            asked = f"{learners} x ({_text(learner)}) to learn{here}"
            if workers:
                asked += f" and {workers} x ({_text(worker)}) to act"
            free = "; ".join(f"{name}: {_text(needs)}" for name, needs in free_machines().items())
            raise NoGroupError(
                f"the cluster has no room for {asked}, {resources.strategy}. Free: {free}. Ask for "
                "less (--worker-cpus, --workers, --strategy) or let machines join with: distrlcc "
                "cluster join"
            )
        # Beyond the plan an actor waits in Ray's queue until there is room.
        placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        planned = [_options(needs, placed(group, index)) for index, needs in enumerate(bundles)]
        most = resources.max_workers
        yield Reservation(
            planned[:learners] + [_options(learner, "SPREAD")] * (most - learners),
            planned[learners:] + [_options(worker, "SPREAD")] * (most - workers),
        )
    finally:
        if not dead_part(ray):
            ray.util.remove_placement_group(group)


def share_of_cores(cores: list[float], named: float, unnamed: int) -> float:
    """Return the cores of each of ``unnamed`` processes: one, or a share that fits everywhere.

    ``cores`` are free on each machine; other processes have ``named`` how many of them they take.
    """
    share = min(1.0, (sum(cores) - named) / max(unnamed, 1))
    share = max(int(share * 1e3) / 1e3, 0.01)  # Ray counts in ten-thousandths
    while share > _LEAST and sum(int(each / share) for each in cores) < unnamed:
        share = max(round(0.8 * share, 3), _LEAST)
    return share
