"""How throughput grows with processes, and what a slow one costs with and without mitigation."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.learn.collect_stats import CollectStats
from distrlcc.runtime.decentralized import train_together
from distrlcc.runtime.exchange import ExchangeModel
from distrlcc.runtime.identity import identity
from distrlcc.runtime.launcher import Launcher
from distrlcc.runtime.place import Place
from distrlcc.runtime.process_group import ProcessGroup
from distrlcc.runtime.run_config import RunConfig
from distrlcc.runtime.stopper import Stopper
from distrlcc.runtime.trainer import Share, Trainer

_WARM_UP = 3
"""Updates that are not counted."""
_SMALL_EXCHANGES = 3
"""Sums of statistics in an update, besides the gradients'."""
_FOREVER = 10**12


@dataclass(frozen=True)
class SpeedJob:
    """What each process measures."""

    config: RunConfig
    slow: float = 1.0
    """How many times as long the last rank's steps take."""
    alone: bool = False
    """Whether each trains by itself, beside the others."""


@dataclass(frozen=True)
class Speed:
    """What rank 0 saw."""

    processes: int
    env_steps_per_second: float
    update_seconds: float
    """Median time of an update."""
    share_exchange: float
    share_wait: float
    updates: int
    cut_short: float
    """Mean number of rollouts cut short in an update."""
    steps: int
    rewards: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """On each held-out link, of the weights that were reached."""


class _Probe:
    """Keeps what a recorder would write."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.times: list[float] = []

    def note(self, event: str) -> None:
        pass

    def record(
        self, metrics: dict[str, float], stats: CollectStats, events: Sequence[str] = ()
    ) -> None:
        self.rows.append(metrics)
        self.times.append(time.perf_counter())

    def finish(self) -> None:
        pass

    def speed(self, processes: int) -> Speed:
        rows, times = self.rows[_WARM_UP:], self.times[_WARM_UP:]
        if len(rows) < 2:
            raise ConfigError(
                f"only {len(self.rows)} updates were done: expected at least {_WARM_UP + 2}; give "
                "more --seconds or --slow-steps"
            )
        first, last = rows[0], rows[-1]

        def mean(key: str) -> float:
            return float(np.mean([row.get(key, 0.0) for row in rows]))

        return Speed(
            processes,
            (last["steps"] - first["steps"]) / (times[-1] - times[0]),
            float(np.median(np.diff(times))),
            mean("share_exchange"),
            mean("share_wait"),
            len(rows),
            mean("rollouts_cut_short"),
            int(last["steps"]),
        )


def grown(config: RunConfig, processes: int) -> RunConfig:
    """Return a configuration with as much work for each of several processes as it has for one."""
    assert config.ppo is not None
    return replace(
        config,
        num_envs=config.num_envs * processes,
        ppo=replace(config.ppo, minibatch_size=config.ppo.minibatch_size * processes),
    )


def measure_speed(config: RunConfig, processes: int, seconds: float, slow: float = 1.0) -> Speed:
    """Train with several processes, each pinned to a core in turn, and measure.

    Args:
        config: Of one process; see `grown`.
        processes: How many.
        seconds: How long; 0 trains until ``config.total_steps`` and scores.
        slow: Slows the last one's steps this many times.
    """
    config = replace(grown(config, processes), checkpoint_every=_FOREVER)
    config = replace(config, held_out=replace(config.held_out, every=_FOREVER))
    if seconds:
        config = replace(config, total_steps=_FOREVER, max_seconds=seconds)
    places = [Place("127.0.0.1", 0, slot, processes) for slot in range(processes)]
    results = Launcher(speed_rank, SpeedJob(config, slow), places, hosts=True).run().results
    speed: Speed = next(result for result in results.values() if result is not None)
    return speed


def measure_side_by_side(config: RunConfig, processes: int, seconds: float) -> list[float]:
    """Train with several processes that know nothing of each other, at the same time.

    Returns:
        Env-steps/s of each: what the machine gives, without any exchange.
    """
    job = SpeedJob(replace(config, max_seconds=seconds), alone=True)
    places = [Place("127.0.0.1", 0, slot, processes) for slot in range(processes)]
    results = Launcher(speed_rank, job, places, hosts=True).run().results
    return [result.env_steps_per_second for result in results.values()]


def speed_rank(place: Place, job: SpeedJob) -> Speed | None:
    """Train as one of the processes; rank 0 returns what it saw."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[place.slot % len(cores)]})
    config, probe = job.config, _Probe()
    group = ProcessGroup(place, identity(config))
    share = Share.of(config.num_envs, place.slot, place.size)
    if place.size == 1 or job.alone:
        trainer = Trainer(config)
        with group:
            group.meet(0, ready=False)  # all begin together
            return _alone(trainer, probe)
    trainer = Trainer(config, share, group)
    if job.slow > 1.0 and place.slot == place.size - 1:
        slow_down(trainer.env, job.slow)

    def open_probe(stack: ExitStack, kept: int) -> _Probe:
        return probe

    with Stopper(launched=True) as stopper, group:
        train_together(trainer, group, open_probe, stopper)
    if not group.leads:
        return None
    speed = probe.speed(place.size)
    if not config.max_seconds:
        rewards = trainer.held_out.by_link(trainer.learner.weights(), "sample")[0]
        speed = replace(speed, rewards=rewards)
    return speed


def _alone(trainer: Trainer, probe: _Probe) -> Speed:
    """Train in the plain loop of one process."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < trainer.config.max_seconds:
        metrics, stats = trainer.iterate()
        probe.record(metrics, stats)
    return probe.speed(1)


def slow_down(env: LinkVectorEnv, factor: float) -> None:
    """Let an environment sleep, so that acting and stepping take ``factor`` times as long."""
    step, last, usual = env.step, 0.0, 0.0

    def slowed(actions: Any) -> Any:
        nonlocal last, usual
        result = step(actions)
        took = time.perf_counter() - last
        if usual and took > 3.0 * usual:  # an update lay between
            took = usual
        elif last:
            usual = 0.9 * usual + 0.1 * took if usual else took
        time.sleep((factor - 1.0) * min(took, usual))
        last = time.perf_counter()
        return result

    env.step = slowed  # type: ignore[method-assign]


def project(
    one: Speed, config: RunConfig, weights: int, model: ExchangeModel, ranks: int
) -> tuple[float, float]:
    """Project throughput (env-steps/s) and efficiency for more processes than were measured.

    Args:
        one: One process alone.
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
    seconds = samples / one.env_steps_per_second
    efficiency = seconds / (seconds + exchange)
    return ranks * one.env_steps_per_second * efficiency, efficiency
