"""Starts a machine's processes of an actor-learner run, and what each does: learners and workers.

Several learners are a decentralized group whose ranks have workers in the place of environments.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import Any

from distrlcc.actors.actor import Actor
from distrlcc.actors.actor_source import ActorSource
from distrlcc.actors.admission import admit, join
from distrlcc.actors.channel import ChannelEngine, hold_object, longest_frame
from distrlcc.actors.engine import Engine
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.errors import ConfigError
from distrlcc.limits import limits
from distrlcc.parallel.interface import check_place, interface_towards
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.process_group import ProcessGroup, checked_device
from distrlcc.parallel.start import TrainJob, node_job, rank_spec, train_group
from distrlcc.parallel.store import note_end, raise_to
from distrlcc.processes import let_threads_preempt, switch_threads_often
from distrlcc.runs.identity import identity
from distrlcc.runs.leadership import run_of
from distrlcc.runs.options import GroupOptions, Node, RankSpec, RunOptions
from distrlcc.runs.progress import Progress, RemoteProgress
from distrlcc.runs.recorder import Recorder
from distrlcc.runs.run_config import TORCH_RPC, RunConfig
from distrlcc.runs.run_state import RunState, build_learner, rehearse
from distrlcc.runs.start import tell
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.train import Alone, train
from distrlcc.sim.suites import load_suite
from distrlcc.storage import say


def start_actors(config: RunConfig, options: RunOptions, group: GroupOptions, node: Node) -> int:
    """Run this machine's processes until they end; return the exit code, or raise DistrlccError."""
    actors, leads, of = config.actors, node.index == 0, config.actors.learners
    if len(actors.nodes) != node.count:
        raise ConfigError(
            f"nodes has {len(actors.nodes)} lists for {node.count} machines: 'distrlcc node' runs "
            "on each of several, and --engine ray has them all"
        )
    if leads:
        check_place(node.address, node.port)
    check_learners(of, len(actors.links))
    if of > 1 and group.gpu >= 0:
        raise ConfigError(f"--gpu {group.gpu}: {of} learners compute on the CPU; leave it out")
    # Plan the slots: learners have the first, the machines in turn; worker k comes k after them.
    first = of + sum(len(entries) for entries in actors.nodes[: node.index])
    slots = list(range(first, first + len(actors.nodes[node.index])))
    place = RankSpec(node.address, node.port, 0, of + len(actors.links), learners=of)
    # The run ends with its only trainer.
    trainer = rank_spec(place, config, replace(group, elastic=of > 1))
    specs = [replace(trainer, slot=slot) for slot in range(node.index, of, node.count)]
    for spec in specs:
        checked_device(spec.device)
    specs += [replace(trainer, slot=slot, device="cpu", elastic=True) for slot in slots]
    if not specs:
        raise ConfigError(f"nodes has no links for node {node.index}: expected one or more")
    # Warn of what does not fit, or refuse it, before anything is written; compile the simulator.
    if actors.engine == TORCH_RPC:
        _torch_rpc()
    else:
        longest_frame(config)
    if config.ppo is not None and not config.ppo.use_vtrace and leads:
        say(
            f"PPO learns from policies up to {actors.max_lag} updates old without correction; "
            "--set ppo.use_vtrace=true corrects for that"
        )
    interface_towards(trainer.address, trainer.interface)
    ActorSource(config)
    rehearse(replace(config, env=replace(config.env, world="simulated")))
    for slot in slots:
        load_suite(actors.links[slot - of])
    # Node 0 makes the run's directory; only learners write there.
    with node_job(config, options, node) as job:
        told: dict[str, Any] = {"invitation": node.invitation, "watch": options.watch}
        outcome = Launcher(actor_rank, job, specs, **told).run()
    if outcome.code and leads and options.show:
        saved = any(slot < of for slot in outcome.results)
        done = "stopped; saved" if saved else "stopped before there was anything to save"
        again = f". Go on with the same line and --load {quote(str(job.out))} in place of --out"
        say(f"{done}{again if saved else ''}")
    return outcome.code


def actor_rank(spec: RankSpec, job: TrainJob) -> int:
    """Be a learner (the first slots) or a worker; return 0 or the signal that ended the run."""
    assert isinstance(job.config, RunConfig)
    switch_threads_often()
    own = identity(job.config, topology="actor-learner", processes=spec.size)
    over_rpc = _torch_rpc() if job.config.actors.engine == TORCH_RPC else None
    most = 0 if over_rpc else longest_frame(job.config)
    if spec.slot >= spec.learners:
        admission = join(spec, own)
        if over_rpc:
            return int(over_rpc.hold_actor(spec, admission))
        return hold_object(spec, admission, partial(Actor, job.config), most)
    make: Any = over_rpc.TorchRpcEngine if over_rpc else partial(ChannelEngine, most=most)
    patience = limits().start
    if spec.learners > 1:
        ranks = ProcessGroup(replace(spec, size=spec.learners), own, job.run)
        state = actor_state(job, spec.device, ranks)
        admitted = partial(admit, spec, own)
        return train_on_engine(
            job, state, lambda: make(spec, admitted()), ranks=ranks, patience=patience
        )
    state = actor_state(job, spec.device)
    let_threads_preempt(True)
    admission = admit(spec, own)
    epoch = raise_to(admission.store, 1)  # the trainer leads as long as it lives
    try:
        return train_on_engine(job, state, lambda: make(spec, admission), patience=patience)
    finally:
        note_end(admission.store, spec.attempt, epoch)


def check_learners(learners: int, workers: int) -> None:
    """Raise ConfigError unless each learner has a worker."""
    if learners > workers:
        raise ConfigError(
            f"actors.learners is {learners}: expected at most one for each of {workers} workers"
        )


def _torch_rpc() -> Any:
    """Return the module of the engine on torch RPC; ConfigError: this torch lacks RPC."""
    try:
        from distrlcc.actors import torch_rpc  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f"actors.engine={TORCH_RPC}: the torch that is installed here has no RPC; leave the "
            "key away"
        ) from None
    return torch_rpc


def actor_state(job: TrainJob, device: str = "cpu", ranks: ProcessGroup | None = None) -> RunState:
    """Set up what is trained, and load it where the run goes on; ``ranks`` are several learners."""
    assert isinstance(job.config, RunConfig)
    source = ActorSource(job.config, 0 if ranks is None else ranks.spec.slot)
    learner = build_learner(job.config, source.spec, ranks or source.reducer, device)
    state = RunState(job.config, source, learner, total_steps=job.config.total_steps)
    if job.resume and ranks is None:  # several load when they have met
        with job.directory(job.run) as directory:
            state.load(directory)
    return state


def train_on_engine(
    job: TrainJob,
    state: RunState,
    make: Callable[[], Engine],
    *,
    ranks: ProcessGroup | None = None,
    feed: RemoteProgress | None = None,
    stopper: Stopper | None = None,
    patience: float,
) -> int:
    """Train with an engine's workers, alone or as one of several learners, shown by a ``feed``.

    The first worker has ``patience`` seconds to start. Returns 0, or the signal that ended the run
    or this learner's part in it; raises what `train` raises.
    """
    source = state.source
    assert isinstance(source, ActorSource)
    stopper = stopper or Stopper(launched=True)
    with ExitStack() as stack:
        stack.callback(source.close, -1)
        here = run_of(job.out) == job.run  # then all learners write of their workers there
        note = say if feed is None else feed.note
        if source.warning and (ranks is None or ranks.spec.slot == 0):
            note(source.warning)
        table = WorkerTable(job.out / "workers.jsonl" if here else None, note)
        source.start(make, table, stopper, state, patience)
        if ranks is not None:
            stopped = train_group(job, ranks, state, stopper, feed, table.lead)
            source.queue.end()
            if job.show:
                note(f"learner {ranks.spec.slot}: {source.queue}")
            return stopped
        # Open the run's directory, and what shows its progress and its workers.
        stack.enter_context(stopper)
        run = stack.enter_context(job.directory(job.run))
        run.lead()
        limit = job.config.max_seconds
        shown = feed or Progress(state.total_steps, max_seconds=limit, show=job.show)
        stack.enter_context(shown)
        if job.resume:
            run.rewind(state.counters.update, shown.note)
        table.lead(run, shown)
        group = Alone(stopper, score_stopped=False)
        recorder = Recorder(state, group, lambda stack: (run, shown))
        stopped = train(state, group, recorder, stopper)
    # Say what came of it.
    source.queue.end()
    if job.show:
        tell(f"{state.summary()}\n{source.queue}", stopped, run.policy_path, feed)
    return stopped
