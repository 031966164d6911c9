"""What each process of an actor-learner run on torch RPC does: train, or hold an actor."""

from __future__ import annotations

import os
import signal
import time

from distrlcc.actors.job import ActorsJob, build_training, train_on_engine
from distrlcc.actors.rendezvous import Admission, admit, check_addresses, come
from distrlcc.actors.torch_rpc import TorchRpcEngine, close_rpc, host, open_rpc
from distrlcc.errors import GroupError
from distrlcc.parallel.place import Place
from distrlcc.runs.identity import identity
from distrlcc.scheduling import let_threads_preempt, switch_threads_often

SILENT_TRAINER_SECONDS = 15.0
"""A worker that the trainer has not called for this long ends, s."""
_ASKED_SECONDS = 1.5
_TICK = 0.1


def rpc_rank(place: Place, job: ActorsJob) -> int:
    """Be the trainer (slot 0) or a worker; return 0 or the signal that ended the run.

    Raises:
        DistrlccError: See `train_with_actors`, `admit` and `come`.
    """
    switch_threads_often()
    interface = check_addresses(place, allow_public=job.allow_public)
    own = identity(job.config, topology="actor-learner", processes=place.size)
    if place.slot == 0:
        training = build_training(job, place.device)
        let_threads_preempt(True)
        admission = admit(place, interface, own)
        open_rpc(place, interface, 0, len(admission.workers) + 1)
        try:
            return train_on_engine(job, training, TorchRpcEngine(admission.workers))
        finally:
            admission.store.set(f"{place.attempt}/finished", "")
    return hold_actor(place, come(place, interface, own))


def hold_actor(place: Place, admission: Admission) -> int:
    """Hold the actor that the trainer starts, until it is stopped.

    Raises:
        GroupError: The trainer is silent.
    """
    open_rpc(place, admission.interface, admission.rank, len(admission.workers) + 1)
    host.heard = time.monotonic()
    asked: list[float] = []  # a signal came; the trainer may first want to count what is here
    signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
    try:
        while host.object is None or not host.object.stopped:
            time.sleep(_TICK)
            if asked and time.monotonic() - asked[0] > _ASKED_SECONDS:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            silent = time.monotonic() - host.heard
            if silent > SILENT_TRAINER_SECONDS:
                raise GroupError(
                    f"the trainer has been silent for {SILENT_TRAINER_SECONDS:.0f} s; it is gone, "
                    "or has given this worker up"
                )
        time.sleep(_TICK)  # the answer is on its way
    finally:
        close_rpc()
    return 0
