"""Starts a run's processes on this machine, or takes the rank that torchrun gives."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from distrlcc.errors import ConfigError, DistrlccError, GroupError
from distrlcc.limits import limits
from distrlcc.parallel.interface import interface_towards
from distrlcc.parallel.launcher import Launcher, mark_rank
from distrlcc.parallel.process_group import checked_device
from distrlcc.parallel.rank_spec import RankSpec
from distrlcc.parallel.store import Master, TCPStore
from distrlcc.parallel.train_job import TrainJob, mark_run, run_directory, train_rank
from distrlcc.processes import die_with_parent
from distrlcc.runs.imitation import SequenceSource
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.progress import Progress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory, fresh_folder
from distrlcc.runs.run_state import RunState, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on, stored
from distrlcc.runs.train import Alone, train

_MASTER = "distrlcc/master"
_STARTS = "distrlcc/starts"


@contextmanager
def open_directory(
    config: RunConfig | ImitateConfig, options: RunOptions, run: str = ""
) -> Iterator[RunDirectory]:
    """Begin a run's directory, or open it to go on, and lock it; store its end at last.

    Where several processes may write to it in turn, it bears the id of their ``run``.
    """
    options = replace(options, out=options.out or fresh_folder(Path("runs"), config.recipe))
    assert options.out is not None
    storage = options.place(run or uuid.uuid4().hex)
    with ExitStack() as stack:
        if storage is not None:
            stack.enter_context(stored(storage, options.out, resume=options.resume))
        directory = run_directory(
            config, options.out, resume=options.resume, tensorboard=options.tensorboard
        )
        directory.storage = storage
        stack.enter_context(directory)
        directory.lock()
        if run:
            mark_run(directory.path, run)
        try:
            yield directory
        except DistrlccError:
            if not options.resume:  # so that the same command works once the cause is mended
                directory.discard()
            raise


def train_alone(state: RunState, options: RunOptions) -> int:
    """Train in this process until the end; return the exit code."""
    config = state.config
    with (
        open_directory(config, options) as run,
        Progress(state.total_steps, max_seconds=config.max_seconds) as progress,
    ):
        if options.resume:
            state.load(run)
            run.rewind(state.counters.update)
        with Stopper() as stopper:
            group = Alone(stopper)
            recorder = Recorder(state, group, lambda stack, kept: (run, progress))
            if isinstance(state.source, SequenceSource):
                state.source.interrupted = recorder.interruption(stopper)
            stopped = train(state, group, recorder, stopper)
    sys.stdout.write(f"{state.summary()}\n")
    if not stopped:
        sys.stdout.write(f"policy: {run.policy_path}\n")
        return 0
    again = f"distrlcc {config.command} {go_on(run.path, run.storage)}"
    sys.stderr.write(f"distrlcc: stopped; saved. Go on with: {again}\n")
    return 128 + stopped


def start_node(
    config: RunConfig | ImitateConfig,
    options: RunOptions,
    group: GroupOptions,
    *,
    node: Node | None = None,
    processes: int = 1,
) -> int:
    """Run this machine's processes until they end; return the exit code.

    Raises:
        DistrlccError: What does not fit, found before anything is written, or what ended the run.
    """
    # Find what does not fit before anything is written.
    node = node or Node()
    specs = [
        _spec(
            config,
            group,
            local,
            address=node.address,
            port=node.port,
            slot=node.index * processes + local,
            size=node.count * processes,
            elastic=group.elastic,
        )
        for local in range(processes)
    ]
    for spec in specs:
        checked_device(spec.device)
    if isinstance(config, RunConfig):
        share = Share.of(config.num_envs, specs[0].slot, specs[0].size, config.env.agents)
        rehearse(replace(config, env=replace(config.env, world="simulated")), share.first)
    # Start the ranks; those of node 0 have their directory already.
    with _job(config, options, node.index) as job:
        outcome = Launcher(train_rank, job, specs, restarts=group.restarts).run()
    if outcome.code and node.index == 0:
        done = "stopped; saved" if outcome.results else "stopped before there was news to save"
        again = go_on(job.out, job.storage)
        sys.stderr.write(f"distrlcc: {done}. Go on with: distrlcc {config.command} {again}\n")
    return outcome.code


def _spec(
    config: RunConfig | ImitateConfig, group: GroupOptions, local: int, **place: Any
) -> RankSpec:
    """Return the spec of this machine's process ``local``."""
    return RankSpec(
        device="cpu" if group.gpu < 0 else f"cuda:{group.gpu + local}",
        interface=group.interface,
        join_seconds=group.join_seconds,
        timeout_seconds=config.distributed.timeout_s,
        **place,
    )


@contextmanager
def _job(config: RunConfig | ImitateConfig, options: RunOptions, node: int) -> Iterator[TrainJob]:
    """Return the ranks' job; node 0 begins the run's directory, or opens it.

    Another node needs a directory only if one of its ranks leads.
    """
    run = uuid.uuid4().hex
    out = options.out or Path("runs") / f"{config.recipe}-node{node}"
    job = TrainJob(config, out, options.resume, options.tensorboard, run, options.place(run))
    if node:
        yield job
        return
    with open_directory(config, options, run) as directory:
        yield replace(job, out=directory.path, storage=directory.storage)


def run_under_torchrun(config: RunConfig, options: RunOptions, group: GroupOptions) -> int:
    """Train as the rank that torchrun's environment names; return the exit code.

    torchrun ends all ranks when one dies, and with ``--max-restarts`` starts all again: the run
    then goes on from its last checkpoint.

    Raises:
        ConfigError: There is no ``--out``.
    """
    if options.out is None:
        raise ConfigError("under torchrun give --out DIR, the same for all ranks")
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun hears Ctrl-C and sends SIGTERM
    slot = int(os.environ["RANK"])
    mark_rank(slot)
    try:
        with ExitStack() as stack:
            spec, master = _torchrun_spec(config, group)
            if master is not None:
                stack.callback(master.close)
                if spec.attempt and (options.out / "config.toml").exists():
                    options = replace(options, resume=True)
            stopped = train_rank(spec, stack.enter_context(_job(config, options, slot)))
    except DistrlccError as error:
        sys.stderr.write(f"distrlcc: error: rank {slot}: {error}\n")
        return error.exit_code
    return 128 + stopped if stopped else 0


def _torchrun_spec(config: RunConfig, group: GroupOptions) -> tuple[RankSpec, Master | None]:
    """Return this rank's spec; on rank 0 with the master that it serves.

    The others find the master's address in torchrun's own store. That outlives a restart, and
    agents count restarts differently, so rank 0 counts them there, and the others try addresses
    until one answers: that of the attempt before belongs to a process that is gone.

    Raises:
        ConfigError: There is no such interface, or no route.
        GroupError: torchrun's store or rank 0 does not answer.
    """
    environment = os.environ
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    slot, master = int(environment["RANK"]), None
    try:
        # Without an agent that serves the store, rank 0 does.
        store = TCPStore(
            address,
            port,
            is_master=slot == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            wait_for_workers=False,
            timeout=timedelta(seconds=group.join_seconds),
        )
        if slot == 0:
            # Serve the master of this attempt.
            attempt = int(store.add(_STARTS, 1)) - 1
            master = Master(interface_towards(address, group.interface).address, 0)
            master.begin(attempt)
            found = f"{attempt} {master.address} {master.port}"
            store.set(_MASTER, found)
        else:
            # Find it.
            deadline = time.monotonic() + group.join_seconds
            while True:
                found = store.get(_MASTER).decode()
                _, host, number = found.split()
                try:
                    socket.create_connection((host, int(number)), limits().call).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        line = f"rank 0 at {host}:{number} does not answer"
                        raise GroupError(line, exit_code=2) from None
                time.sleep(limits().tick)
    except RuntimeError as error:
        raise GroupError(
            f"torchrun's store at {address}:{port} does not answer ({str(error).splitlines()[0]})",
            exit_code=2,
        ) from None
    count, host, number = found.split()
    spec = _spec(
        config,
        group,
        int(environment["LOCAL_RANK"]),
        address=host,
        port=int(number),
        slot=slot,
        size=int(environment["WORLD_SIZE"]),
        elastic=False,
        attempt=int(count),
    )
    return spec, master
