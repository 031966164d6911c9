"""What the trainer's terminal shows of its workers."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from distrlcc.actors.board import Board
from distrlcc.actors.crew import Row
from distrlcc.actors.engine import Worker
from distrlcc.runs.progress import Progress


def _rows(count: int) -> list[Row]:
    return [
        Row(
            Worker(index, f"10.0.0.{index}", 4000 + index),
            f"indigo/{index}",
            version=7,
            lag=index,
            steps=1280,
            steps_per_second=1234.4,
            last_episode={"utilisation": 0.9812, "queueing_delay": 0.25},
        )
        for index in range(count)
    ]


def test_a_row_for_each_worker_in_the_terminal_and_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "workers.jsonl"
    board = Board(Progress(1000), path)
    board.show(_rows(2), update=9, seconds=3.25)
    board.show(_rows(2), update=9, seconds=3.5)  # not a second later
    console = Console(width=120)
    with console.capture() as shown:
        console.print(board.table())
    head, first, second = shown.get().splitlines()
    columns = ["worker", "link", "steps/s", "version", "lag", "utilisation", "delay", "heard"]
    assert head.split() == columns
    assert first.split()[:8] == ["0", "10.0.0.0", "indigo/0", "1,234", "7", "0", "0.981", "0.250"]
    assert second.split()[4:6] == ["7", "1"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["worker"], row["update"], row["seconds"]) for row in rows] == [
        (0, 9, 3.25), (1, 9, 3.25),
    ]  # fmt: skip
    assert rows[1]["link"] == "indigo/1"


def test_a_table_that_is_too_long_says_what_it_leaves_out(tmp_path: Path) -> None:
    board = Board(Progress(1000), tmp_path / "workers.jsonl")
    board.show(_rows(40), update=1, seconds=1.0)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(board.table())
    assert shown.get().splitlines()[-1].strip() == "and 8 more"
