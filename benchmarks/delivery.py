"""What workers deliver to a trainer on this machine, at the pace of real links and without."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.actors.pace import LATENESS_SECONDS
from distrlcc.actors.start import start_actors
from distrlcc.errors import GroupError
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.run_config import RunConfig

_NEVER = 10**12


@dataclass(frozen=True)
class Delivery:
    """What was measured of some workers."""

    workers: int
    pace_ms: float
    """Length of a step, ms; 0: as fast as it goes."""
    steps_per_second: float
    """Environment steps of all workers that came to the trainer, per second."""
    used_per_second: float
    """Of these, those that it has learned from."""
    acted_per_second: float
    """Environment steps that workers took, per second."""
    late_share: float
    """Share of paced steps that ended more than a millisecond after their deadline."""
    late_ms_p99: float
    """How late a step ended at most, of 99 in 100, ms; the upper bound of a bin of 41%."""
    busy_share: float
    """Share of the time that the trainer learned."""
    lag: float
    """Mean of the updates that segments were behind."""
    publish_ms_median: float
    publish_ms_p99: float
    """Time until all workers had confirmed new weights, of the updates counted, ms."""
    refused: int
    """Segments that were of no use, those left over at the end not counted."""


def measure_delivery(config: RunConfig, workers: int, pace_ms: float, seconds: float) -> Delivery:
    """Train on this machine for a time, and read what the run wrote.

    Each worker steps one environment and an update learns from a segment of each. The first third
    is not counted.

    Args:
        config: Whose links are dealt to the workers in turn.
        workers: How many.
        pace_ms: Length of a step, ms, as on a real link; 0: as fast as it goes.
        seconds: How long to train.

    Raises:
        GroupError: The run failed, or was too short.
    """
    links = [entry for node in config.actors.nodes for entry in node]
    dealt = tuple(links[index % len(links)] for index in range(workers))
    config = replace(
        config,
        actors=replace(
            config.actors, nodes=(dealt,), envs_per_worker=1, segments_per_update=workers
        ),
        held_out=replace(config.held_out, every=_NEVER, links=1, seconds=1.0),
        checkpoint_every=_NEVER,
        total_steps=_NEVER,
        max_seconds=seconds,
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        code = start_actors(
            config,
            RunOptions(out, tensorboard=False),
            GroupOptions(),
            Node(),
            pace_seconds=pace_ms / 1e3,
            quiet=True,
        )
        if code:
            raise GroupError(f"the run of {workers} workers ended with exit code {code}")
        rows = _read(out / "metrics.jsonl")
        seen = _read(out / "workers.jsonl")
    counted = [row for row in rows if row["seconds"] > seconds / 3]
    if len(counted) < 3:
        raise GroupError(
            f"only {len(counted)} updates in {seconds:.0f} s; give more --seconds", exit_code=2
        )
    time = counted[-1]["seconds"] - counted[0]["seconds"]
    # The slope, as segments come many at once: their number at two moments says less.
    received = np.polyfit(
        [row["seconds"] for row in counted], [row["segments_received"] for row in counted], 1
    )[0]
    acted = paced = late = 0.0
    lateness = np.zeros(len(LATENESS_SECONDS) + 1)
    for worker in range(workers):
        own = [row for row in seen if row["worker"] == worker]
        own = [row for row in own if row["seconds"] > seconds / 3]
        if len(own) > 1:
            first, last = own[0], own[-1]
            acted += (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])
            paced += last["paced_steps"] - first["paced_steps"]
            late += last["late_steps"] - first["late_steps"]
            if pace_ms:
                lateness += np.subtract(last["lateness"], first["lateness"])
    published = [row["publish_ms"] for row in counted if "publish_ms" in row]
    return Delivery(
        workers=workers,
        pace_ms=pace_ms,
        steps_per_second=float(received) * config.rollout_length,
        used_per_second=(counted[-1]["steps"] - counted[0]["steps"]) / time,
        acted_per_second=acted,
        late_share=late / paced if paced else 0.0,
        late_ms_p99=_percentile(lateness, 0.99) if paced else 0.0,
        busy_share=float(np.mean([row["share_update"] for row in counted])),
        lag=float(np.mean([row["lag"] for row in counted])),
        publish_ms_median=float(np.median(published)),
        publish_ms_p99=float(np.percentile(published, 99)),
        refused=int(counted[-1]["segments_refused"]),
    )


def _percentile(lateness: NDArray[np.float64], share: float) -> float:
    """Return the bound, ms, that a share of the steps counted in bins does not exceed."""
    reached = int(np.searchsorted(np.cumsum(lateness), share * lateness.sum()))
    return float(1e3 * LATENESS_SECONDS[min(reached, len(LATENESS_SECONDS) - 1)])


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
