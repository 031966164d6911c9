"""Measures the engines beside each other: threads of this process, torch RPC, and Ray."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from benchmarks.echo import EngineFigures, measure_engine
from distrlcc.actors.in_process import InProcessEngine
from distrlcc.actors.rendezvous import admit, check_addresses, come
from distrlcc.actors.rpc_job import hold_actor
from distrlcc.actors.torch_rpc import TorchRpcEngine, open_rpc
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.place import Place
from distrlcc.runs.identity import identity
from distrlcc.runs.run_config import RunConfig
from distrlcc.scheduling import switch_threads_often


@dataclass(frozen=True)
class EngineJob:
    """What is measured."""

    config: RunConfig
    workers: int
    seconds: float
    began: float = 0.0


def measure_in_process(job: EngineJob) -> EngineFigures:
    """Measure the engine of threads: what the others' messages cost is seen beside it."""
    began = monotonic()
    engine = InProcessEngine(job.workers)
    return measure_engine(engine, job.config, job.workers, job.seconds, began)


def measure_torch_rpc(job: EngineJob) -> EngineFigures:
    """Measure torch RPC between processes of this machine.

    Raises:
        GroupError: They did not come together, or a signal ended them.
    """
    job = EngineJob(job.config, job.workers, job.seconds, monotonic())
    places = [Place("127.0.0.1", 0, slot, 1 + job.workers) for slot in range(1 + job.workers)]
    figures: EngineFigures = (
        Launcher(_rpc_rank, job, places, hosts=True, vital=0).run().measured()[0]
    )
    return figures


def _rpc_rank(place: Place, job: EngineJob) -> EngineFigures | None:
    switch_threads_often()
    interface = check_addresses(place, allow_public=False)
    own = identity(job.config, topology="bench engines")
    if place.slot > 0:
        hold_actor(place, come(place, interface, own))
        return None
    admission = admit(place, interface, own)
    open_rpc(place, interface, 0, job.workers + 1)
    engine = TorchRpcEngine(admission.workers)
    return measure_engine(engine, job.config, job.workers, job.seconds, job.began)


def measure_ray(job: EngineJob) -> EngineFigures:
    """Measure Ray on this machine, its own start included.

    Raises:
        DistrlccError: Ray is not installed, or does not start.
    """
    from distrlcc.cluster.engine import RayEngine
    from distrlcc.cluster.placement import reserve
    from distrlcc.cluster.session import RayOptions, ray_session

    began = monotonic()
    with (
        ray_session(RayOptions()),
        reserve(job.config.resources, learners=1, workers=job.workers) as room,
    ):
        engine = RayEngine(room, job.config, identity(job.config, topology="actor-learner"))
        return measure_engine(engine, job.config, job.workers, job.seconds, began)


ENGINES = {"in-process": measure_in_process, "torch-rpc": measure_torch_rpc, "ray": measure_ray}
