"""The workers, shown in the trainer's terminal and written to the run's directory."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from rich.table import Table

from distrlcc.actors.worker_pool import WorkerState
from distrlcc.errors import writing
from distrlcc.runs.progress import Display
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.storage import say

WRITE_SECONDS = 1.0  # time between two rows of a worker in the file, at least, s
_SHOWN = 32
_COLUMNS = ("worker", "link", "steps/s", "version", "lag", "utilisation", "delay", "heard")


class WorkerTable:
    """A table of workers below the progress, and ``workers.jsonl``."""

    def __init__(self, path: Path | None, note: Callable[[str], None] = say) -> None:
        """Write there, if anywhere, and note news; see `lead`."""
        self.note, self._path = note, path
        self._redraw: Callable[[], None] = lambda: None
        self._check = self._redraw
        self._written = float("-inf")
        self._workers: list[WorkerState] = []

    def lead(self, run: RunDirectory, shown: Display) -> None:
        """Show all where the run is shown, and write to its directory while it is led here."""
        self.note, self._redraw, shown.below = shown.note, shown.redraw, self.table
        self._path, self._check = run.path / "workers.jsonl", run.check

    def show(self, workers: list[WorkerState], update: int, seconds: float) -> None:
        """Show the workers now and then, and write a line for each; OutputError, FencedError."""
        same = [s.worker for s in workers] == [s.worker for s in self._workers]
        self._workers = workers
        if same and monotonic() - self._written < WRITE_SECONDS:
            return
        self._written = monotonic()
        self._redraw()
        if self._path is None:
            return
        when = {"seconds": round(seconds, 3), "update": update}
        lines = [json.dumps(when | _figures(state)) + "\n" for state in self._workers]
        self._check()
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def table(self) -> Table:
        """Return the table."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column in ("worker", "link") else "right")
        for state in self._workers[:_SHOWN]:
            last = state.report.last_episode
            table.add_row(
                f"{state.worker.index} {state.worker.host}",
                state.report.link,
                f"{state.steps_per_second:,.0f}",
                str(state.report.version),
                str(state.lag),
                f"{last['utilisation']:.3f}" if last else "",
                f"{last['queueing_delay']:.3f} RTT" if last else "",
                f"{state.silent_seconds:.1f} s",
            )
        if len(self._workers) > _SHOWN:
            table.add_row(f"and {len(self._workers) - _SHOWN} more", *[""] * (len(_COLUMNS) - 1))
        return table


def _figures(state: WorkerState) -> dict[str, object]:
    worker, report = state.worker, state.report
    return {
        "worker": worker.index,
        "host": worker.host,
        "process": worker.process,
        "link": report.link,
        "steps": report.steps,
        "steps_per_second": round(state.steps_per_second, 1),
        "version": report.version,
        "lag": state.lag,
        "heard_seconds": round(state.silent_seconds, 3),
        "waited_seconds": round(report.waited_seconds, 3),
        **{name: round(value, 4) for name, value in report.last_episode.items()},
    }
