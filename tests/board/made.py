"""Runs' folders as trainings write them, by what writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distrlcc.actors.actor import Report
from distrlcc.actors.engine import Worker
from distrlcc.actors.worker_pool import WorkerState
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.config import override
from distrlcc.recipes.registry import recipe
from distrlcc.runs.run_directory import RunDirectory


def finished_run(path: Path, *, lr: float, alarm: str = "") -> None:
    """Write a run of 20 updates, with held-out scores and who joined and left."""
    config = override(recipe("quickstart"), [f"ppo.lr={lr}", "total_steps=2000"])
    with RunDirectory.create(path, config, tensorboard=False) as run:
        run.metrics.begin_after()
        for update in range(1, 21):
            row: dict[str, Any] = {"steps": 100.0 * update, "seconds": 2.0 * update}
            row |= {"episode_return": update**0.5, "steps_per_second": 50.0}
            row |= {3: {"events": ["joined: rank 1 of host"]}, 9: {"events": ["gone: rank 1"]}}.get(
                update, {}
            )
            if alarm and update == 12:
                row["alarm"] = alarm
            run.metrics.log(update, row)
            if update % 5 == 0:
                run.metrics.log(update, {"held_out_reward_argmax": 0.5 + update / 50})


@dataclass
class Member:
    """A run with workers; what it writes is what a trainer's table writes."""

    path: Path
    table: WorkerTable = field(init=False)
    known: dict[str, WorkerState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        RunDirectory.create(self.path, recipe("quickstart"), tensorboard=False).close()
        self.table = WorkerTable(self.path / "workers.jsonl")

    def write(self, seconds: float, *hosts: str) -> None:
        """Write a line for each host's worker, who is there at a time of the run."""
        for host in hosts:
            if host not in self.known:
                worker = Worker(len(self.known), host, 4000 + len(self.known))
                self.known[host] = WorkerState(worker, Report("random/0"))
        self.table._written = float("-inf")
        self.table.show([self.known[host] for host in hosts], 1, seconds)
