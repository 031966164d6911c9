"""What the trainer's terminal shows of its workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from distrlcc.actors.actor import Report
from distrlcc.actors.engine import Worker
from distrlcc.actors.worker_pool import WorkerState
from distrlcc.actors.worker_table import WorkerTable
from distrlcc.runs.leadership import FencedError, Leadership
from distrlcc.runs.progress import Progress
from distrlcc.runs.run_directory import RunDirectory
from tests.actors.shared import DAGGER


def _states(count: int) -> list[WorkerState]:
    last = {"utilisation": 0.9812, "queueing_delay": 0.25}
    return [
        WorkerState(
            Worker(index, f"10.0.0.{index}", 4000 + index),
            Report(f"indigo/{index}", version=7, steps=1280, last_episode=last),
            lag=index,
            steps_per_second=1234.4,
        )
        for index in range(count)
    ]


def test_a_row_for_each_worker_in_the_terminal_and_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "workers.jsonl"
    table = WorkerTable(path)
    table.show(_states(40), update=9, seconds=3.25)
    table.show(_states(40), update=9, seconds=3.5)  # not a second later
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table.table())
    head, first, second, *_, last = shown.get().splitlines()
    columns = ["worker", "link", "steps/s", "version", "lag", "utilisation", "delay", "heard"]
    assert head.split() == columns
    assert first.split()[:8] == ["0", "10.0.0.0", "indigo/0", "1,234", "7", "0", "0.981", "0.250"]
    assert second.split()[4:6] == ["7", "1"]
    assert last.strip() == "and 8 more"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["worker"] for row in rows] == list(range(40))
    assert {(row["update"], row["seconds"]) for row in rows} == {(9, 3.25)}
    assert rows[1]["link"] == "indigo/1"


def test_a_trainer_that_was_replaced_writes_no_row(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", DAGGER, tensorboard=False) as run:
        run.belong_to("one")
        run.lead()
        table = WorkerTable(None)
        WorkerTable(None).show(_states(2), update=8, seconds=1.0)  # nobody said where to
        table.lead(run, Progress(1000))
        Leadership(run.path, "one", epoch=2)
        with pytest.raises(FencedError):
            table.show(_states(2), update=9, seconds=3.25)
    assert not (run.path / "workers.jsonl").exists()
