"""Starts a machine's processes of an actor-learner run: its workers, and on node 0 the trainer."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from distrlcc.actors.admission import admit, check_addresses, join
from distrlcc.actors.job import ActorsJob, build_training, check_agents, train_on_engine
from distrlcc.actors.torch_rpc import TorchRpcEngine, hold_actor
from distrlcc.errors import ConfigError
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.place import Place
from distrlcc.parallel.process_group import checked_device
from distrlcc.parallel.start import open_directory
from distrlcc.runs.curriculum_config import check_no_curriculum
from distrlcc.runs.identity import identity
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.trainer import Share, Trainer
from distrlcc.scheduling import let_threads_preempt, switch_threads_often
from distrlcc.sim.suites import load_suite

_STOP_SECONDS = 3.0
"""Time that workers have to end when the trainer has, or was silent for them."""


def start_actors(
    config: RunConfig,
    options: RunOptions,
    group: GroupOptions,
    node: Node,
    *,
    allow_public: bool = False,
    quiet: bool = False,
) -> int:
    """Run this machine's processes until they end; return the exit code.

    Args:
        config: The run's; ``actors.nodes`` has a list for each machine.
        options: Where node 0 writes.
        group: How processes find each other.
        node: This machine.
        allow_public: Whether RPC may listen on a public address.
        quiet: Print nothing on standard output.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    check_no_curriculum(config.curriculum, "actor-learner training")
    actors = config.actors
    links, nodes = actors.links, actors.nodes
    if len(nodes) != node.count:
        raise ConfigError(f"nodes has {len(nodes)} lists for {node.count} machines")
    first = 1 + sum(len(entries) for entries in nodes[: node.index])
    slots = list(range(first, first + len(nodes[node.index])))
    place = Place(
        address=node.address,
        port=node.port,
        slot=0,
        size=1 + len(links),
        interface=group.interface,
        join_seconds=group.join_seconds,
    )
    places = [replace(place, slot=slot) for slot in slots]
    if node.index == 0:  # without the trainer the run is over
        device = "cpu" if group.gpu < 0 else f"cuda:{group.gpu}"
        checked_device(device)
        places.insert(0, replace(place, device=device, elastic=False))
    if not places:
        raise ConfigError(f"nodes has no links for node {node.index}: expected one or more")
    if config.ppo is not None and not config.ppo.use_vtrace and node.index == 0:
        sys.stderr.write(
            f"distrlcc: PPO learns from policies up to {actors.max_lag} updates old without "
            "correction; --set ppo.use_vtrace=true corrects for that\n"
        )
    check_addresses(place, allow_public=allow_public)
    # Finds what does not fit before anything is written, and compiles the simulator for all.
    check_agents(config)
    simulated = replace(config, env=replace(config.env, world="simulated"))
    Trainer(simulated, Share.least(config.env.agents)).collect()
    for slot in slots:
        load_suite(links[slot - 1])
    with ExitStack() as stack:
        out, storage = options.out or Path(), None
        if node.index == 0:
            directory = stack.enter_context(open_directory(config, options))
            directory.lock()
            out, storage = directory.path, directory.storage
        job = ActorsJob(
            config,
            out,
            options.resume,
            options.tensorboard,
            allow_public,
            quiet,
            storage,
        )
        launcher = Launcher(
            rpc_rank,
            job,
            places,
            hosts=node.index == 0,
            vital=0 if node.index == 0 else None,
            bound=True,
            name=lambda slot: f"worker {slot - 1}" if slot else "the trainer",
            stop_seconds=_STOP_SECONDS,
        )
        outcome = launcher.run()
    if outcome.code and node.index == 0:
        saved = 0 in outcome.results
        done = "stopped; saved" if saved else "stopped before there was anything to save"
        again = f". Go on with the same line and --load {out} in place of --out" if saved else ""
        sys.stderr.write(f"distrlcc: {done}{again}\n")
    return outcome.code


def rpc_rank(place: Place, job: ActorsJob) -> int:
    """Be the trainer (slot 0) or a worker; return 0 or the signal that ended the run.

    Raises:
        DistrlccError: See `train_on_engine`, `admit`, `join` and `hold_actor`.
    """
    switch_threads_often()
    interface = check_addresses(place, allow_public=job.allow_public)
    own = identity(job.config, topology="actor-learner", processes=place.size)
    if place.slot:
        return hold_actor(place, join(place, interface, own))
    training = build_training(job, place.device)
    let_threads_preempt(True)
    admission = admit(place, interface, own)
    try:
        return train_on_engine(job, training, TorchRpcEngine(place, admission))
    finally:
        admission.store.set(f"{place.attempt}/finished", "")
