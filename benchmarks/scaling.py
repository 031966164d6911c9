"""How throughput grows with processes, each with as much work as one alone.

The machine's own speed drifts by more than an exchange costs. So the same processes train together,
then one of them alone, then all side by side without any exchange, in turns of a second each, and
only turns of one round are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from distrlcc.parallel.data_parallel_group import DataParallelGroup
from distrlcc.runs.trainer import Share, Trainer

from benchmarks.exchange import ExchangeModel
from distrlcc.learn.collect import CollectStats
from distrlcc.parallel.decentralized import train_together
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.place import Place
from distrlcc.parallel.process_group import PeerLostError
from distrlcc.runs.identity import identity
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.stopper import Stopper

UPDATES = 8
"""Updates in a turn."""
_SMALL_EXCHANGES = 3
"""Sums of statistics in an update, besides the gradients'."""
_NEVER = 10**12


@dataclass(frozen=True)
class ScalingJob:
    """What each process measures."""

    config: RunConfig
    """Of one process."""
    rounds: int


@dataclass(frozen=True)
class Round:
    """Seconds that a turn of each kind took."""

    alone: float
    """One process trains, the others wait."""
    together: float
    side_by_side: float
    """All train, each by itself: what the machine gives without any exchange."""


@dataclass(frozen=True)
class Scaling:
    """What was measured of some processes."""

    processes: int
    steps: int
    """Environment steps of one process in a turn."""
    rounds: list[Round]
    share_exchange: float
    """Median share of rank 0's time in exchanges; likewise waiting for the others' rollouts."""
    share_wait: float

    @property
    def one(self) -> float:
        """Env-steps/s of one process alone."""
        return self.steps / float(np.median([r.alone for r in self.rounds]))

    @property
    def all(self) -> float:
        """Env-steps/s of all together."""
        return self.processes * self.steps / float(np.median([r.together for r in self.rounds]))

    def efficiencies(self) -> list[float]:
        """Return each round's throughput over that of one process times their number."""
        return [r.alone / r.together for r in self.rounds]

    def without_exchange(self) -> list[float]:
        """Return the same for processes that are side by side."""
        return [r.alone / r.side_by_side for r in self.rounds]


class Probe:
    """Keeps what a recorder would write."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.times: list[float] = []

    def note(self, event: str) -> None:
        """Say nothing."""

    def record(
        self, metrics: dict[str, float], stats: CollectStats, events: Sequence[str] = ()
    ) -> None:
        """Keep an update's metrics and the time."""
        self.rows.append(metrics)
        self.times.append(perf_counter())

    def finish(self) -> None:
        """Write nothing."""


class _InTurns(Trainer):
    """Trains with the others, and every few updates alone and side by side with them."""

    def __init__(
        self, config: RunConfig, share: Share, group: DataParallelGroup, own: Trainer
    ) -> None:
        super().__init__(config, share, group)
        self._group, self._own = group, own
        self.rounds: list[Round] = []
        self._resumed = perf_counter()

    def collect(self, stop: Callable[[int], bool] | None = None) -> CollectStats:
        if self.counters.update and self.counters.update % UPDATES == 0:
            self._take_turns(perf_counter() - self._resumed)
            self._resumed = perf_counter()
        return super().collect(stop)

    def _take_turns(self, together: float) -> None:
        group, alone = self._group, 0.0
        group.wait()
        if len(self.rounds) % group.size == group.rank:
            alone = group.size * self._train_own()
        group.wait()
        beside = self._train_own()
        group.wait()
        try:
            times = group.sum(np.array([alone, together, beside])) / group.size
        except PeerLostError as error:
            raise group.explain(error) from None
        self.rounds.append(Round(*times.tolist()))

    def _train_own(self) -> float:
        begin = perf_counter()
        for _ in range(UPDATES):
            self._own.iterate()
        return perf_counter() - begin


def grown(config: RunConfig, processes: int) -> RunConfig:
    """Return a configuration with as much work for each of several processes as it has for one."""
    assert config.ppo is not None
    return replace(
        config,
        num_envs=config.num_envs * processes,
        ppo=replace(config.ppo, minibatch_size=config.ppo.minibatch_size * processes),
    )


def without_saving(config: RunConfig) -> RunConfig:
    """Return a configuration that neither scores nor saves."""
    held_out = replace(config.held_out, every=_NEVER)
    return replace(config, checkpoint_every=_NEVER, held_out=held_out, max_seconds=0.0)


def pin(slot: int) -> None:
    """Pin this process to a core, in turn."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[slot % len(cores)]})


def measure_scaling(config: RunConfig, processes: int, rounds: int) -> Scaling:
    """Train with two or more processes, each pinned to a core in turn, and measure.

    Args:
        config: Of one process; see `grown`.
        processes: How many.
        rounds: Of turns.

    Raises:
        GroupError: A user's signal ended it.
    """
    places = [Place("127.0.0.1", 0, slot, processes, elastic=False) for slot in range(processes)]
    job = ScalingJob(without_saving(config), rounds)
    results = Launcher(scaling_rank, job, places, hosts=True).run().measured()
    scaling: Scaling = next(result for result in results if result is not None)
    return scaling


def scaling_rank(place: Place, job: ScalingJob) -> Scaling | None:
    """Train as one of the processes; rank 0 returns what it saw."""
    pin(place.slot)
    config = grown(job.config, place.size)
    steps = config.num_envs * config.rollout_length
    # The first round warms up; the last turns are taken when an update is begun after them.
    config = replace(config, total_steps=steps * (UPDATES * (job.rounds + 1) + 1))
    # All rollouts are whole, so that turns of as many updates are the same work.
    config = replace(config, distributed=replace(config.distributed, straggler_share=0.0))
    group, probe = DataParallelGroup(place, identity(config)), Probe()
    own = Trainer(job.config, Share(place.slot * job.config.num_envs, job.config.num_envs))
    share = Share.of(config.num_envs, place.slot, place.size, config.env.agents)
    trainer = _InTurns(config, share, group, own)
    with Stopper(launched=True) as stopper, group:
        train_together(trainer, group, lambda stack, kept: probe, stopper)
    if not group.leads or stopper.signal:
        return None
    rows = probe.rows[UPDATES:]
    return Scaling(
        place.size,
        UPDATES * steps // place.size,
        trainer.rounds[1:],
        float(np.median([row["share_exchange"] for row in rows])),
        float(np.median([row["share_wait"] for row in rows])),
    )


def project(
    one: float, config: RunConfig, weights: int, model: ExchangeModel, ranks: int
) -> tuple[float, float]:
    """Project throughput (env-steps/s) and efficiency for more processes than were measured.

    Args:
        one: Env-steps/s of one process alone.
        config: Its configuration.
        weights: float32 values of the gradient.
        model: Of an exchange.
        ranks: Processes, each on a core of its own.
    """
    assert config.ppo is not None
    samples = config.num_envs * config.ppo.rollout_length
    minibatches = config.ppo.num_epochs * -(-samples // config.ppo.minibatch_size)
    exchange = minibatches * model.seconds(ranks, weights)
    exchange += _SMALL_EXCHANGES * model.seconds(ranks, 64)
    seconds = samples / one
    efficiency = seconds / (seconds + exchange)
    return ranks * one * efficiency, efficiency
