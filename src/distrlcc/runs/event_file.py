"""TensorBoard's event file, written at once: a thread of its own would raise where no one hears."""

import platform
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from os import getpid
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

_GROUPS = {
    "acting": "reward policy_entropy guarded_share minimum_window_share late_steps late_batches",
    "episodes": "episodes episode_return utilisation queueing_delay loss silent_episode_share",
    "processes": "ranks workers rollouts_cut_short segments_received segments_used "
    "segments_refused lag lag_max publish_ms staleness",
    "time": "update steps seconds steps_per_second",
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}


def tag(key: str) -> str:
    """Return a metric's name in TensorBoard: its group, a slash, and its key."""
    if key.startswith("held_out_"):
        return f"held_out/{key.removeprefix('held_out_')}"
    group = "time" if key.startswith("share_") else _GROUP_OF.get(key, "learning")
    return f"{group}/{key}"


class EventFile:
    """Scalars by environment step, in a file of a folder; what it raises is an OSError."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], first_step: int | None = None
    ) -> None:
        """Begin a file, with the run's settings; earlier ones are hidden from ``first_step`` on."""
        folder.mkdir(exist_ok=True)
        now = datetime.now(UTC).timestamp()
        name = f"events.out.tfevents.{now:017.6f}.{platform.node()}.{getpid()}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if first_step is not None:
            self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))
        plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in settings.items()}
        self._write(summary=hparams_pb(plain, trial_id=folder.parent.name or "run"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append values of a step."""
        scalars = [Summary.Value(tag=tag(key), simple_value=x) for key, x in values.items()]
        self._write(step=step, summary=Summary(value=scalars))

    def _write(self, **what: object) -> None:
        event = Event(wall_time=datetime.now(UTC).timestamp(), **what)
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what a full disk has no room for was said when it was written
            self._file.close()
