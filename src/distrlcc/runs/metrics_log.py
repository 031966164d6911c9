"""What a run measures: a line per update in ``metrics.jsonl``, and TensorBoard's event files."""

from __future__ import annotations

import errno
import json
import mmap
import numbers
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from distrlcc.errors import OutputError

if TYPE_CHECKING:
    from distrlcc.runs.event_file import EventFile


class MetricsLog:
    """The metrics of the run in a folder; nothing is written before the first update's."""

    def __init__(self, folder: Path, *, tensorboard: bool = True) -> None:
        """Take the run's folder, and whether to write event files too."""
        self.path = folder / "metrics.jsonl"
        self._events = folder / "tensorboard"
        self._tensorboard = tensorboard
        self._purge: int | None = None
        self._lines: BinaryIO | None = None
        self._writer: EventFile | None = None

    def rewind(self, update: int) -> None:
        """Drop what is of later updates than this one; before any event file is written."""
        self._purge = update + 1  # TensorBoard hides what an earlier attempt wrote from here on
        if self.path.exists():
            cut_after(self.path, update)

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Append an update's metrics: numbers, texts or lists of them.

        What is not finite is written as null. Only numbers go to TensorBoard.

        Raises:
            OutputError: They cannot be written.
        """
        self._append(update, metrics)
        self._show(update, metrics)

    def log_more(self, update: int, metrics: Mapping[str, Any], more: Mapping[str, float]) -> None:
        """Add more to the metrics of the update that was logged last.

        Raises:
            OutputError: It cannot be written.
        """
        cut_after(self.path, update - 1)
        self._append(update, {**metrics, **more})
        self._show(update, more)

    def _append(self, update: int, metrics: Mapping[str, Any]) -> None:
        row = msgspec.json.encode({"update": update, **metrics}, enc_hook=lambda v: v.tolist())
        try:
            if self._lines is None:
                self._lines = self.path.open("ab")
            self._lines.write(msgspec.json.format(row, indent=0) + b"\n")
            self._lines.flush()
            if not os.fstat(self._lines.fileno()).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile")
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path}: {error.strerror}; make room or put the folder back, "
                "then go on with --resume"
            ) from None

    def _show(self, update: int, metrics: Mapping[str, Any]) -> None:
        if not self._tensorboard:
            return
        try:
            if self._writer is None:
                from distrlcc.runs.event_file import EventFile  # noqa: PLC0415  (slow to import)

                self._writer = EventFile(self._events, self._purge)
            shown = {k: float(v) for k, v in metrics.items() if isinstance(v, numbers.Real)}
            self._writer.write(update, shown)
        except OSError as error:
            raise OutputError(
                f"cannot write {self._events}: {error.strerror}; make room, or add --no-tensorboard"
            ) from None

    def close(self) -> None:
        """Close the files."""
        if self._lines is not None:
            with suppress(OSError):  # a row that does not fit was said to
                self._lines.close()
            self._lines = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def cut_after(path: Path, update: int) -> None:
    """Drop the lines at a file's end that are torn, or of later updates.

    Each line is a JSON object with its ``update``, in order; there may be millions.
    """
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                while end:
                    begin = text.rfind(b"\n", 0, end - 1) + 1
                    if _kept(text[begin:end], update):
                        break
                    end = begin
        file.truncate(end)


def _kept(line: bytes, update: int) -> bool:
    """Say whether a line is whole and of an update that the checkpoint has."""
    try:
        return bool(json.loads(line)["update"] <= update) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
