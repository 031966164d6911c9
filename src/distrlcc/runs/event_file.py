"""TensorBoard's event file, written at once: a thread of its own would raise where no one hears."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from os import getpid
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """Scalars by step, in a file of a folder; what it raises is an OSError."""

    def __init__(self, folder: Path, first_step: int | None = None) -> None:
        """Begin a file; TensorBoard hides what earlier ones have from ``first_step`` on."""
        folder.mkdir(exist_ok=True)
        now = datetime.now(UTC).timestamp()
        name = f"events.out.tfevents.{now:017.6f}.{platform.node()}.{getpid()}"
        self._file = (folder / name).open("xb", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if first_step is not None:
            self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append values of a step."""
        scalars = [Summary.Value(tag=key, simple_value=x) for key, x in values.items()]
        self._write(step=step, summary=Summary(value=scalars))

    def _write(self, **what: object) -> None:
        event = Event(wall_time=datetime.now(UTC).timestamp(), **what)
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
