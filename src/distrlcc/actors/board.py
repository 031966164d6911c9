"""The workers, shown in the trainer's terminal and written to the run's directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from rich.table import Table

from distrlcc.actors.crew import Row
from distrlcc.errors import OutputError
from distrlcc.runs.progress import Display

_SECONDS = 1.0
_SHOWN = 32
_COLUMNS = ("worker", "link", "steps/s", "version", "lag", "utilisation", "delay", "heard")


class Board:
    """A table of workers below the progress, and `workers.jsonl`."""

    def __init__(self, progress: Display, path: Path) -> None:
        """Take where to show and where to write."""
        self._progress, self._path = progress, path
        self._written = 0.0
        self._rows: list[Row] = []
        self._events: list[str] = []
        progress.below = self.table

    def note(self, event: str) -> None:
        """Say who came or left, at once and with the next update's metrics."""
        self._progress.note(event)
        self._events.append(event)

    def take_events(self) -> list[str]:
        """Return the events since the last call."""
        seen, self._events = self._events, []
        return seen

    def show(self, rows: Sequence[Row], update: int, seconds: float) -> None:
        """Show the workers and write a line for each, at most once a second."""
        self._rows = list(rows)
        if monotonic() - self._written < _SECONDS:
            return
        self._written = monotonic()
        self._progress.redraw()
        when = {"seconds": round(seconds, 3), "update": update}
        lines = [json.dumps(when | _figures(row)) for row in rows]
        if lines:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
            except OSError as error:
                raise OutputError(f"{self._path}: {error.strerror or error}") from None

    def table(self) -> Table:
        """Return the table."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in _COLUMNS:
            table.add_column(column, justify="left" if column in ("worker", "link") else "right")
        for row in self._rows[:_SHOWN]:
            last = row.last_episode
            table.add_row(
                f"{row.worker.index} {row.worker.host}",
                row.link,
                f"{row.steps_per_second:,.0f}",
                str(row.version),
                str(row.lag),
                f"{last['utilisation']:.3f}" if last else "",
                f"{last['queueing_delay']:.3f} RTT" if last else "",
                f"{row.age:.1f} s",
            )
        if len(self._rows) > _SHOWN:
            table.add_row(f"and {len(self._rows) - _SHOWN} more", *[""] * (len(_COLUMNS) - 1))
        return table


def _figures(row: Row) -> dict[str, object]:
    return {
        "worker": row.worker.index,
        "host": row.worker.host,
        "process": row.worker.process,
        "link": row.link,
        "steps": row.steps,
        "steps_per_second": round(row.steps_per_second, 1),
        "version": row.version,
        "lag": row.lag,
        "heard_seconds": round(row.age, 3),
        "waited_seconds": round(row.waited_seconds, 3),
        "paced_steps": row.paced_steps,
        "late_steps": row.late_steps,
        **({"lateness": row.lateness} if row.paced_steps else {}),
        **{name: round(value, 4) for name, value in row.last_episode.items()},
    }
