"""Measure what workers deliver to a trainer on this machine.

python -m benchmarks actors --workers 1,2,4,8,16 --json -
python -m benchmarks actors --workers 4,16 --learners 1,2
python -m benchmarks actors --workers 4 --set env.world=emulated

Flags:
    --workers N,… {1..256} =1,2,4,8,16  counts to measure
    --learners K,… {1..64}  counts of learners, each with each count of workers (default: 1)
    --seconds N {2.0..100000} =30.0  time for each measurement, s; its first third is not counted
    --recipe N =distrlcc
    --set/assignments* KEY=VALUE  change a key of the recipe
    $JSON
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import Namespace
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from distrlcc.actors.start import start_actors
from distrlcc.cli.output import emit_json
from distrlcc.config import override
from distrlcc.errors import GroupError
from distrlcc.recipes.registry import recipe
from distrlcc.runs.options import GroupOptions, Node, RunOptions
from distrlcc.runs.run_config import RunConfig

_NEVER = 10**12


def run(args: Namespace) -> int:
    """Measure and print."""
    config = override(recipe(args.recipe), args.assignments)
    rows = []
    for workers, learners in product(args.workers, args.learners or [1]):
        if learners > workers:
            continue
        found = measure_delivery(config, workers, learners, args.seconds)
        rows.append(found)
        if args.json != "-":
            print(
                f"{workers:>3} workers, {learners} learner{'s' if learners > 1 else ''}: "
                f"{found['segments_per_second']:,.1f} segments/s used of "
                f"{found['steps_per_second'] / config.rollout_length:,.1f} that came; trainer busy "
                f"{found['busy_share']:.0%}, lag {found['lag']:.1f} updates, weights everywhere in "
                f"{found['publish_ms_median']:.1f} ms (p99 {found['publish_ms_p99']:.1f})"
            )
    emit_json(args.json, {"actors": rows})
    return 0


def measure_delivery(
    config: RunConfig, workers: int, learners: int, seconds: float
) -> dict[str, float]:
    """Train on this machine for a time, of which the first third is not counted.

    The configuration's links are dealt to the workers in turn. Each worker steps one environment,
    and an update learns from a segment of each.
    """
    # Train without scores and checkpoints.
    links = [entry for node in config.actors.nodes for entry in node]
    dealt = tuple(links[index % len(links)] for index in range(workers))
    actors = replace(config.actors, nodes=(dealt,), envs_per_worker=1, segments_per_update=workers)
    actors = replace(actors, learners=learners)
    config = replace(
        config,
        actors=actors,
        held_out=replace(config.held_out, every=_NEVER, links=1, seconds=1.0),
        checkpoint_every=_NEVER,
        total_steps=_NEVER,
        max_seconds=seconds,
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = RunOptions(out, tensorboard=False)
        # What the trainer prints goes to standard error.
        output = os.dup(1)
        os.dup2(2, 1)
        code = start_actors(config, options, GroupOptions(), Node())
        os.dup2(output, 1)
        os.close(output)
        if code:
            raise GroupError(f"the run of {workers} workers ended with exit code {code}")
        rows, seen = (_read(out / name, seconds / 3) for name in ("metrics.jsonl", "workers.jsonl"))
    if len(rows) < 3:
        raise GroupError(
            f"only {len(rows)} updates in {seconds:.0f} s; give more --seconds", exit_code=2
        )
    # The slope of what came, as segments come many at once: their number at two times says less.
    times = [row["seconds"] for row in rows]
    received = np.polyfit(times, [row["segments_received"] for row in rows], 1)[0]
    used, acted = (rows[-1]["steps"] - rows[0]["steps"]) / (times[-1] - times[0]), 0.0
    for worker in range(workers):
        own = [row for row in seen if row["worker"] == worker]
        if len(own) > 1:
            steps = own[-1]["steps"] - own[0]["steps"]
            acted += steps / (own[-1]["seconds"] - own[0]["seconds"])
    published = [row["publish_ms"] for row in rows if "publish_ms" in row]
    return {
        "workers": workers,
        "learners": learners,
        # Environment steps that the trainer received, learned from, and that workers took.
        "steps_per_second": float(received) * config.rollout_length,
        "used_per_second": used,
        "segments_per_second": used / config.rollout_length,
        "acted_per_second": acted,
        # Share of the time in which the trainer learned; updates that segments were behind.
        "busy_share": float(np.mean([row["share_update"] for row in rows])),
        "lag": float(np.mean([row["lag"] for row in rows])),
        # Time until all workers had confirmed new weights.
        "publish_ms_median": float(np.median(published)),
        "publish_ms_p99": float(np.percentile(published, 99)),
        # Segments that were not used, except those left over at the end.
        "refused": int(rows[-1]["segments_refused"]),
    }


def _read(path: Path, after: float) -> list[dict[str, Any]]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row.get("seconds", 0.0) > after]  # a score has none
