"""Starts a run's processes on this machine, or is one that torchrun started; what each one does."""

import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from distrlcc.data.reader import StoredData
from distrlcc.errors import ConfigError, DistrlccError, NoGroupError, OutputError, warn_in_lines
from distrlcc.limits import limits
from distrlcc.parallel.admission import decode, own_token
from distrlcc.parallel.decentralized import ElasticGroup
from distrlcc.parallel.interface import LOOPBACK, check_place, interface_towards, is_loopback
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.process_group import ProcessGroup, checked_device
from distrlcc.parallel.store import Master, open_store, open_tunnel
from distrlcc.parallel.tunnel import Port
from distrlcc.processes import die_with_parent
from distrlcc.runs.identity import identity
from distrlcc.runs.imitation import SequenceSource, imitation_run
from distrlcc.runs.leadership import run_of
from distrlcc.runs.options import GroupOptions, Node, RankSpec, RunOptions
from distrlcc.runs.progress import Display, Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import ImitateConfig, RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.run_state import RunState, env_run, rehearse
from distrlcc.runs.source import Share
from distrlcc.runs.start import open_directory, tell
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on
from distrlcc.runs.train import train
from distrlcc.sim.suites import written
from distrlcc.storage import Storage, say

_MASTER = "distrlcc/master"
_STARTS = "distrlcc/starts"
_FOUND = "distrlcc/found"  # whether the first attempt has found a run in --out
_Told = tuple[
    Annotated[int, msgspec.Meta(ge=0, lt=10**9)],
    Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,3}(\.[0-9]{1,3}){3}\Z")],
    Port,
]
"""Rank 0's note there: the attempt, and its master's address and port."""


@dataclass(frozen=True)
class TrainJob:
    """A run, as its processes receive it."""

    config: RunConfig | ImitateConfig
    out: Path
    resume: bool = False
    tensorboard: bool = True
    run: str = ""  # id of the run; node 0's is valid for all
    storage: Storage | None = None  # where the durable copy goes
    here: bool = False  # whether the run's directory was made on this machine: it is not made again
    show: bool = True  # whether the rank that leads shows progress

    def folder(self, run: str) -> Path:
        """Return where the run's directory is, or is made: beside one that holds anything else."""
        out = self.out
        if run_of(out) != run and out.exists() and (not out.is_dir() or any(out.iterdir())):
            return out.with_name(f"{out.name}-{run[:8]}")
        return out

    def directory(self, run: str) -> RunDirectory:
        """Open the run's directory; make a missing one, as on another machine."""
        out = self.out if self.here else self.folder(run)
        resume = run_of(out) == run
        if self.here and not resume:
            raise OutputError(f"{out} no longer holds this run; was it deleted?")
        directory = RunDirectory.open(out, self.config, resume=resume, tensorboard=self.tensorboard)
        directory.belong_to(run, new=not resume)
        if self.storage is not None:
            directory.storage = Storage(self.storage.url, self.storage.name, run)
        return directory


def train_rank(
    spec: RankSpec,
    job: TrainJob,
    feed: RemoteProgress | None = None,
    stopper: Stopper | None = None,
) -> int:
    """Train as a rank, shown by a ``feed`` if any; return 0 or the signal that ended it."""
    # Find what does not fit before joining.
    config, stopper = job.config, stopper or Stopper(launched=True)
    kind, elastic = spec.device.partition(":")[0], "yes" if spec.elastic else "no"
    links = written(config.env.suites)  # of a machine's own files
    own = identity(config, processes=spec.size, device=kind, elastic=elastic, **links)
    ranks = ProcessGroup(spec, own, job.run)
    if isinstance(config, ImitateConfig):
        state = imitation_run(config, StoredData(Path(config.data)), spec.slot, spec.size, ranks)
    else:
        state = env_run(config, Share.of(config, spec.slot, spec.size), ranks, spec.device)
    return train_group(job, ranks, state, stopper, feed)


def train_group(
    job: TrainJob,
    ranks: ProcessGroup,
    state: RunState,
    stopper: Stopper,
    feed: RemoteProgress | None = None,
    leads: Callable[[RunDirectory, Display], None] = lambda run, shown: None,
) -> int:
    """Join the group, and train until the end; return 0 or the signal that ended this rank's part.

    ``leads`` is called whenever this rank becomes rank 0. Raises what `train` raises.
    """
    config = job.config

    # Only a rank that leads opens the directory: rank 0, and whichever takes over.
    def open_run(stack: ExitStack) -> tuple[RunDirectory, Display]:
        run = stack.enter_context(job.directory(ranks.run))
        run.lead(ranks.epoch, ranks.still_leads)
        seconds = config.max_seconds
        shown = feed or Progress(state.total_steps, max_seconds=seconds, show=job.show)
        stack.enter_context(shown)
        leads(run, shown)
        return run, shown

    # Join and train.
    recorder = Recorder(state, ranks, open_run, shared_only=True, resume=job.resume)
    group = ElasticGroup(ranks, stopper, recorder)
    with ranks, stopper, recorder:
        if isinstance(state.source, SequenceSource):
            state.source.interrupted = recorder.interruption(stopper, group.greatest)
        stopped = train(state, group, recorder, stopper)
    # The rank that saved prints the result.
    if recorder.policy_path and job.show:
        tell(state.summary(), stopped, recorder.policy_path, feed)
    return stopped


def start_node(
    config: RunConfig | ImitateConfig,
    options: RunOptions,
    group: GroupOptions,
    *,
    node: Node | None = None,
    processes: int = 1,
) -> int:
    """Run this machine's processes until they end; return the exit code; raises DistrlccError."""
    # Find what does not fit before anything is written.
    node = node or Node()
    if node.index == 0:
        check_place(node.address, node.port)
    first, size = node.index * processes, node.count * processes
    specs = [
        rank_spec(RankSpec(node.address, node.port, first + local, size), config, group, local)
        for local in range(processes)
    ]
    for spec in specs:
        checked_device(spec.device)
    if isinstance(config, RunConfig):
        share = Share.of(config, first, size)
        rehearse(replace(config, env=replace(config.env, world="simulated")), share.first)
    # Start the ranks; those of node 0 have their directory already.
    with node_job(config, options, node) as job:
        more: dict[str, Any] = {"invitation": node.invitation, "watch": options.watch}
        outcome = Launcher(train_rank, job, specs, restarts=group.restarts, **more).run()
    heard = 0 if group.elastic else outcome.results.get(first, 0)  # another node's signal
    code = outcome.code or (128 + heard if heard else 0)
    if code and node.index == 0 and options.show:
        if not (job.out / "config.toml").exists():
            say("stopped before there was anything to save")
            return code
        done = "stopped; saved" if outcome.results else "stopped before there was news to save"
        again = go_on(job.out, job.storage)
        words = f"distrlcc {config.command} {again}" + f" --processes {processes}" * (processes > 1)
        if node.count > 1:
            words = f"the same lines, where node 0's has {again} in place of recipe and --out"
        say(f"{done}. Go on with: {words}")
    return code


def rank_spec(
    place: RankSpec, config: RunConfig | ImitateConfig, group: GroupOptions, local: int = 0
) -> RankSpec:
    """Return the whole spec of this machine's process ``local``."""
    return replace(
        place,
        device="cpu" if group.gpu < 0 else f"cuda:{group.gpu + local}",
        interface=group.interface,
        join_seconds=group.join_seconds,
        timeout_seconds=config.distributed.timeout_s,
        sync_every=config.distributed.sync_every,
        elastic=group.elastic,
    )


@contextmanager
def node_job(
    config: RunConfig | ImitateConfig, options: RunOptions, node: Node
) -> Iterator[TrainJob]:
    """Return the ranks' job; node 0 begins or opens the directory, others only once they lead."""
    run = uuid.uuid4().hex
    out = options.out or Path("runs") / f"{config.recipe}-node{node.index}"
    job = TrainJob(config, out, options.resume, options.tensorboard, run, options.place(run))
    job = replace(job, show=options.show)
    if node.index:
        yield job
        return
    with open_directory(config, options, run, alone=node.count == 1) as directory:
        yield replace(job, out=directory.path, storage=directory.storage, here=True)


@contextmanager
def behind_tunnel(spec: RankSpec, token: str, master: Master | None = None) -> Iterator[RankSpec]:
    """Return the spec, with its own tunnel, of a rank that no launcher of ours started."""
    tunnel = open_tunnel(replace(spec, port=0), token) if master is None else master.tunnel
    try:
        yield replace(spec, gate=tunnel.name) if tunnel is not None else spec
    finally:
        if tunnel is not None:
            tunnel.close()


def run_launched(
    config: RunConfig, options: RunOptions, group: GroupOptions, environment: Mapping[str, str]
) -> int:
    """Train as the rank that `launched`'s ``environment`` names; return the exit code.

    torchrun ends all ranks when one dies, and with ``--max-restarts`` starts all again, which go on
    from the last checkpoint. ConfigError: there is no ``--out``.
    """
    if options.out is None:
        raise ConfigError("under a launcher give --out DIR, the same for all ranks")
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun hears Ctrl-C and sends SIGTERM
    slot = int(environment["RANK"])
    warn_in_lines(slot)
    try:
        with ExitStack() as stack:
            # The rank that serves the store has to hold it.
            spec, master, store = _launched_spec(config, group, environment)
            if master is not None:
                stack.callback(master.close)
            spec = stack.enter_context(behind_tunnel(spec, own_token(), master))
            # A run that was there before is another's, which a restart must not go on with.
            begun = (options.out / "config.toml").exists()
            try:
                new = slot == 0 and store.compare_set(_FOUND, "", str(begun)) == b"False"
            except RuntimeError as error:
                raise NoGroupError(f"the launcher's store does not answer ({error})") from None
            options = replace(options, resume=options.resume or (new and begun))
            job = stack.enter_context(node_job(config, options, Node(slot, spec.size)))
            stopped = train_rank(spec, job)
    except DistrlccError as error:
        sys.stderr.write(f"distrlcc: error: rank {slot}: {error}\n")
        return error.exit_code
    return 128 + stopped if stopped else 0


def _launched_spec(
    config: RunConfig, group: GroupOptions, environment: Mapping[str, str]
) -> tuple[RankSpec, Master | None, Any]:
    """Return this rank's spec; on rank 0 the master that it serves; and the launcher's store.

    The others find the master's address in the launcher's store, which outlives a restart. Agents
    count restarts differently, so rank 0 counts them there. The others try addresses until one
    answers: that of the attempt before belongs to a process that is gone. Raises ConfigError if
    there is no such interface, or no route; GroupError if that store or rank 0 does not answer.
    """
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    slot, master = int(environment["RANK"]), None
    # Without an agent that serves the store, rank 0 does.
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        serves = slot == 0 and not agent
        store = open_store(address, port, group.join_seconds, serves=serves)
        if slot == 0:
            # Serve the master of this attempt.
            attempt = int(store.add(_STARTS, 1)) - 1
            # On one machine it needs no tunnel.
            own = interface_towards(address, group.interface).address
            alone = os.environ.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]
            alone |= is_loopback(own)
            master = Master(LOOPBACK if alone else own, 0, token=own_token())
            master.begin(attempt)
            host, number = master.address, master.port
            store.set(_MASTER, msgspec.json.encode((attempt, host, number)).decode())
        else:
            # Find it.
            deadline = time.monotonic() + group.join_seconds
            source = "the place in the store where rank 0's address belongs"
            while True:
                attempt, host, number = decode(store.get(_MASTER), _Told, source)
                try:
                    socket.create_connection((host, number), limits().call).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        line = f"rank 0 at {host}:{number} does not answer"
                        raise NoGroupError(line) from None
                time.sleep(limits().tick)
    except RuntimeError as error:
        told = f"the store at MASTER_ADDR:MASTER_PORT, {address}:{port}, does not answer"
        if not agent:
            told = f"rank 0's store at {address}:{port} does not answer: start rank 0, and give all"
            told = told if slot else f"cannot serve the ranks at {address}:{port}: give all"
            told += " ranks rank 0's own MASTER_ADDR and a MASTER_PORT that nothing else has"
        raise NoGroupError(f"{told} ({str(error).splitlines()[0]})") from None
    local, size = int(environment["LOCAL_RANK"]), int(environment["WORLD_SIZE"])
    place = RankSpec(host, number, slot, size, attempt=attempt)
    return rank_spec(place, config, replace(group, elastic=False), local), master, store
