"""A run's metrics: a line per update in ``metrics.jsonl``, and TensorBoard's event files."""

import errno
import json
import numbers
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from distrlcc.errors import OutputError, reading, writing
from distrlcc.files import rename, temporary_path
from distrlcc.limits import limits

if TYPE_CHECKING:
    from distrlcc.runs.event_file import EventFile

_REMEDY = "; make room or put the folder back, then go on with --resume"
GROUP = "group"
"""Key of the group of ranks that made an update: a row with another one is of other weights."""
CLOSING = "scored"
"""Key of a row with the score of a run's end: one that goes on has not been scored then."""


class _Row(msgspec.Struct):
    update: int
    steps: float | None = None
    group: str | None = None
    scored: str = ""


class MetricsLog:
    """The metrics of the run in a folder, or its workers' lines, which are only appended.

    Later figures, such as an update's scores, are another line of it: `read_metrics` joins them.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "metrics.jsonl",
        *,
        tensorboard: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a run's folder and a file's name; ``tensorboard``: event files, with settings."""
        self.path = folder / name
        self.newest = 0  # the newest update that has a line
        self._events = folder / "tensorboard"
        self._tensorboard = tensorboard
        self._settings = settings or {}
        self._steps = 0
        self._purge: int | None = None
        self._size = self._crc = 0
        self._before = 0, 0
        self._lines: BinaryIO | None = None
        self._writer: EventFile | None = None

    def begin_after(
        self,
        update: int | None = None,
        groups: Mapping[int, str] | None = None,
        *,
        check: Callable[[], None] = lambda: None,
        epoch: int = 0,
    ) -> None:
        """Go on with what is there, without torn lines and those of updates after ``update``.

        Later rows stay if their group is one of ``groups``. The lines are copied to a new file: one
        that a former writer has open is then of no run. ``check`` is `write_together`'s
        ``before_rename``. Raises OutputError.
        """
        self.close()
        copy = temporary_path(self.path, epoch)
        self._size = self._crc = 0
        try:
            with writing(self.path, _REMEDY):
                self._lines = copy.open("xb")
                if self.path.exists():
                    self._keep(self._lines, sys.maxsize if update is None else update, groups or {})
                    # TensorBoard hides what was written before from here on.
                    self._purge = self._steps + 1
                self._sync()
                check()
                rename(copy, self.path, check)
        finally:
            copy.unlink(missing_ok=True)

    def _keep(self, copy: BinaryIO, last: int, groups: Mapping[int, str]) -> None:
        """Copy the whole lines of updates up to ``last``, and of groups; there may be many."""
        self.newest, self._steps = 0, 0
        with self.path.open("rb") as lines:
            for line in lines:
                with suppress(ValueError, RecursionError):  # torn, or none of ours
                    row = msgspec.json.decode(line, type=_Row)
                    if row.update == last + 1 and row.group == groups.get(row.update, ""):
                        last += 1
                    if row.update <= last and not row.scored and line.endswith(b"\n"):
                        self._append(copy, line)
                        self.newest, self._steps = row.update, int(row.steps or self._steps)

    def _append(self, lines: BinaryIO, data: bytes) -> None:
        lines.write(data)
        self._size, self._crc = self._size + len(data), zlib.crc32(data, self._crc)

    def _sync(self) -> None:
        if self._lines is not None:
            self._lines.flush()
            os.fsync(self._lines.fileno())

    def durable(self) -> dict[str, int]:
        """Have all lines on the disk, or raise OutputError; return their ``bytes`` and ``crc``."""
        with writing(self.path, _REMEDY):
            self._sync()
        return {"bytes": self._size, "crc": self._crc}

    def damage(self, kept: Mapping[str, int]) -> str:
        """Say what is not as `durable` once had it: lines are lost or changed; empty if nothing."""
        size = self.path.stat().st_size if self.path.exists() else 0
        crc, left = 0, kept["bytes"]
        if size >= left > 0:
            with self.path.open("rb") as lines:
                while piece := lines.read(min(left, 1 << 20)):
                    crc, left = zlib.crc32(piece, crc), left - len(piece)
        if size < kept["bytes"]:
            return (
                f"{self.path} has {size} bytes, its checkpoint saw {kept['bytes']}: rows are lost"
            )
        changed = f"{self.path} is not what its checkpoint saw: rows are changed"
        return changed if crc != kept["crc"] else ""

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Append numbers, texts or lists of an update, null if not finite; raises OutputError."""
        row = msgspec.json.encode({"update": update, **metrics}, enc_hook=lambda v: v.tolist())
        line = msgspec.json.format(row, indent=0) + b"\n"
        twice(lambda: self._write(line), self._reopen)
        self.newest = update
        self._steps = int(metrics.get("steps", self._steps))
        self._show(metrics)

    def _write(self, line: bytes) -> None:
        with writing(self.path, _REMEDY):
            if self._lines is None:
                self._lines = self.path.open("ab")
                self._size = self._lines.tell()
            self._before = self._size, self._crc
            self._append(self._lines, line)
            self._lines.flush()
            if not os.fstat(self._lines.fileno()).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was removed or replaced meanwhile")

    def _reopen(self) -> None:
        """Open the file anew, without what was written of a line that a file system refused."""
        if self._lines is None:
            return
        with suppress(OSError):
            self._lines.close()
        self._size, self._crc = self._before
        with writing(self.path, _REMEDY):
            os.truncate(self.path, self._size)
            self._lines = self.path.open("ab")

    def _show(self, metrics: Mapping[str, Any]) -> None:
        if not self._tensorboard:
            return
        with writing(self._events, "; make room, or add --no-tensorboard"):
            if self._writer is None:
                from distrlcc.runs.event_file import EventFile  # noqa: PLC0415  (slow to import)

                self._writer = EventFile(self._events, self._settings, self._purge)
            shown = {k: float(v) for k, v in metrics.items() if isinstance(v, numbers.Real)}
            self._writer.write(self._steps, shown)

    def close(self) -> None:
        """Close the files."""
        if self._lines is not None:
            with suppress(OSError):  # a row that does not fit was said to
                self._lines.close()
            self._lines = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def twice(write: Callable[[], object], before: Callable[[], None] = lambda: None) -> None:
    """Write, and once more after `Limits.retry` where that may help, with something ``before``."""
    try:
        write()
    except OutputError as error:
        if not error.passing:
            raise
        time.sleep(limits().retry)
        before()
        write()


class Follower:
    """Reads a run's rows while another process writes them."""

    def __init__(self, path: Path) -> None:
        """Take the path of a file of `MetricsLog`, which need not be there yet."""
        self._path = path
        self._told: list[int] = []  # of each line that was read, what tells it from others
        self._file = self._read = self._place = 0

    def news(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last call; after a rewind, those that have changed."""
        try:
            with self._path.open("rb") as lines:
                status = os.fstat(lines.fileno())
                if status.st_ino != self._file or status.st_size < self._read:
                    self._file, self._read, self._place = status.st_ino, 0, 0
                lines.seek(self._read)
                data = lines.read()
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # it is being written
                break
            self._read, mark = self._read + len(line), zlib.crc32(line)
            if self._told[self._place : self._place + 1] != [mark]:
                self._told[self._place :] = [mark]
                with suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
            self._place += 1
        return found


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return a row for each update, in order; raises OutputError if a line is damaged."""
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(Path(path).read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):  # it is being written
            continue
        damaged = f"line {number} of {path} is no row of metrics"
        with reading(OutputError, damaged, "; put the file back, or take the line out"):
            row = json.loads(line)
            found.setdefault(int(row["update"]), {}).update(row)
    return list(found.values())
