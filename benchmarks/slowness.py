"""What a slow process costs the others: training with one whose steps take longer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling import Probe, grown, pin, without_saving
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError
from distrlcc.parallel.decentralized import train_together
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.place import Place
from distrlcc.parallel.process_group import ProcessGroup
from distrlcc.runs.identity import identity
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.trainer import Share, Trainer

_WARM_UP = 3
"""Updates that are not counted."""
_COUNTED = 2
"""The least that must be."""


@dataclass(frozen=True)
class SlowJob:
    """What each process does."""

    config: RunConfig
    slow: float
    """How many times as long the last rank's steps take."""
    pace: float
    """Time that every rank's steps take at least, s."""


@dataclass(frozen=True)
class SlowRun:
    """What rank 0 saw of a whole run."""

    env_steps_per_second: float
    update_seconds: float
    """Median time of an update."""
    share_update: float
    """Rank 0's share of the time that it computed gradients."""
    cut_short: float
    """Mean number of rollouts cut short in an update."""
    rewards: NDArray[np.float64]
    """On each held-out link, of the weights that were reached."""


def check_slow_run(config: RunConfig, processes: int) -> None:
    """See that there is enough to measure, before anything is.

    Args:
        config: Of one process, with the steps of the run; see `grown`.
        processes: How many.

    Raises:
        ConfigError: The steps do not suffice.
    """
    update = grown(config, processes).num_envs * config.rollout_length
    least = (_WARM_UP + _COUNTED) * update
    if config.total_steps < least:
        raise ConfigError(
            f"--slow-steps {config.total_steps}: expected {least} or more, "
            f"{_WARM_UP + _COUNTED} updates of {processes} processes"
        )


def measure_slow_run(config: RunConfig, processes: int, slow: float, pace: float) -> SlowRun:
    """Train ``config.total_steps`` with processes that are pinned to a core in turn.

    Args:
        config: Of one process; see `grown` and `check_slow_run`.
        processes: How many.
        slow: Slows the last one's steps this many times.
        pace: Time that every process's steps take at least, s, as those of real links do.

    Raises:
        GroupError: A user's signal ended it.
    """
    config = without_saving(grown(config, processes))
    places = [Place("127.0.0.1", 0, slot, processes, elastic=False) for slot in range(processes)]
    results = Launcher(slow_rank, SlowJob(config, slow, pace), places, hosts=True).run().measured()
    run: SlowRun = next(result for result in results if result is not None)
    return run


def slow_rank(place: Place, job: SlowJob) -> SlowRun | None:
    """Train as one of the processes; rank 0 returns what it saw."""
    pin(place.slot)
    config, probe = job.config, Probe()
    group = ProcessGroup(place, identity(config))
    trainer = Trainer(
        config, Share.of(config.num_envs, place.slot, place.size, config.env.agents), group
    )
    slow_down(trainer.env, job.slow if place.slot == place.size - 1 else 1.0, job.pace)
    with Stopper(launched=True) as stopper, group:
        train_together(trainer, group, lambda stack, kept: probe, stopper)
    if not group.leads or stopper.signal:
        return None
    rows, times = probe.rows[_WARM_UP:], probe.times[_WARM_UP:]
    return SlowRun(
        (rows[-1]["steps"] - rows[0]["steps"]) / (times[-1] - times[0]),
        float(np.median(np.diff(times))),
        float(np.median([row["share_update"] for row in rows])),
        float(np.mean([row["rollouts_cut_short"] for row in rows])),
        trainer.held_out.by_link(trainer.learner.weights(), "sample")[0],
    )


def slow_down(env: LinkVectorEnv, factor: float, pace: float) -> None:
    """Let an environment sleep in every step.

    Args:
        env: Whose ``step`` is replaced.
        factor: How many times as long as others' acting and stepping take this one's do.
        pace: Time that a step takes at least before that, s.
    """
    step, last, usual = env.step, 0.0, 0.0

    def slowed(actions: Any) -> Any:
        nonlocal last, usual
        result = step(actions)
        took = time.perf_counter() - last
        if last and not (usual and took > 3.0 * usual):  # else an update lay between
            usual = 0.9 * usual + 0.1 * took if usual else took
        time.sleep(factor * max(usual, pace) - usual)
        last = time.perf_counter()
        return result

    env.step = slowed  # type: ignore[method-assign]
