"""Writes a data set: whole episodes to shards of bounded size, and the manifest at the end."""

import json
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distrlcc.data import manifest as kept
from distrlcc.data.manifest import NAME, Manifest, Origin, Shard, Spaces
from distrlcc.files import require_vacant, require_writable, write_atomically, write_together


@dataclass(frozen=True, slots=True)
class Episode:
    """One trajectory of ``T`` steps."""

    link: str
    observations: NDArray[np.float32]  # [T, D]
    actions: NDArray[Any]  # int [T] or float32 [T, A], taken
    expert_actions: NDArray[Any]  # likewise, what the expert would have taken
    rewards: NDArray[np.float32]  # [T]
    outcomes: NDArray[np.float32]  # [T, 3], see `distrlcc.data.manifest`
    final_observation: NDArray[np.float32]  # [D]
    scores: dict[str, float]  # ``return``, ``utilisation``, ``queueing_delay``, ``loss``


class DatasetWriter(AbstractContextManager["DatasetWriter"]):
    """Writes a data set while entered; if an exception leaves it, nothing is left behind.

    It holds one shard at most. A killed process leaves shards without a manifest: no data set.
    """

    def __init__(self, folder: Path, spaces: Spaces, origin: Origin, shard_steps: int) -> None:
        """Make the folder, new or empty; a shard has at most ``shard_steps``, or one episode."""
        self.folder, self._spaces, self._origin = folder, spaces, origin
        self._shard_steps = shard_steps
        self._made = not folder.exists()
        check_vacant(folder)
        require_writable(folder)
        self._shards: list[Shard] = []
        self._open: list[Episode] = []
        self._open_steps = 0
        self.steps, self.episodes = 0, 0

    def add(self, episode: Episode) -> None:
        """Take an episode; full shards go to the disk, or are an `OutputError`."""
        count = len(episode.rewards)
        if self._open and self._open_steps + count > self._shard_steps:
            self._flush()
        self._open.append(episode)
        self._open_steps += count
        self.steps += count
        self.episodes += 1

    def finish(self) -> Manifest:
        """Write the rest and the manifest, and return it; see :meth:`add`."""
        self._flush()
        counts = self.steps, self.episodes
        manifest = Manifest(self._spaces, self._origin, *counts, tuple(self._shards))
        manifest = replace(manifest, crc=kept.checksum(manifest))
        text = json.dumps(msgspec.to_builtins(manifest), indent=2) + "\n"
        write_atomically(self.folder / NAME, text.encode())
        return manifest

    def discard(self) -> None:
        """Remove what was written."""
        for shard in self._shards:
            for name in (shard.steps_file, shard.episodes_file):
                (self.folder / name).unlink(missing_ok=True)
        if self._made and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _flush(self) -> None:
        if not self._open:
            return
        number = len(self._shards)
        names = f"steps-{number:05}.arrow", f"episodes-{number:05}.arrow"
        first = self.episodes - len(self._open)
        tables = _steps(self._open, first, self._spaces), _episodes(self._open, first, self._spaces)
        rows = self._open_steps, len(self._open)
        self._open, self._open_steps = [], 0
        files = {name: _serialise(table) for name, table in zip(names, tables, strict=True)}
        write_together(self.folder, files)
        sizes = [len(files[name]) for name in names]
        crcs = [zlib.crc32(files[name]) for name in names]
        self._shards.append(Shard(names[0], rows[0], sizes[0], names[1], rows[1], sizes[1], *crcs))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self.discard()


def check_vacant(folder: Path) -> None:
    """Refuse a place for a data set that holds something: an `OutputError`."""
    unfinished = "holds an unfinished data set; delete it, or give another --out"
    holds = {NAME: "already holds a data set; give another --out, or delete it"}
    holds |= {"steps-*.arrow": unfinished}
    require_vacant(folder, holds, "is not empty; give a new or empty folder as --out")


def _steps(episodes: list[Episode], first: int, spaces: Spaces) -> pa.RecordBatch:
    lengths = [len(e.rewards) for e in episodes]
    last = np.zeros(sum(lengths), np.bool_)
    last[np.cumsum(lengths) - 1] = True
    values: dict[str, NDArray[Any]] = {
        "episode": np.repeat(np.arange(first, first + len(episodes)), lengths),
        "step": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        "observation": np.concatenate([e.observations for e in episodes]),
        "action": np.concatenate([e.actions for e in episodes]),
        "expert_action": np.concatenate([e.expert_actions for e in episodes]),
        "reward": np.concatenate([e.rewards for e in episodes]),
        "outcome": np.concatenate([e.outcomes for e in episodes]),
        "terminated": np.zeros(len(last), np.bool_),
        "truncated": last,
    }
    return _batch(values, kept.step_schema(spaces))


def _episodes(episodes: list[Episode], first: int, spaces: Spaces) -> pa.RecordBatch:
    lengths = np.array([len(e.rewards) for e in episodes])
    values: dict[str, Any] = {
        "episode": np.arange(first, first + len(episodes)),
        "link": [e.link for e in episodes],
        "first_row": np.cumsum(lengths) - lengths,
        "steps": lengths,
        **{key: np.array([e.scores[key] for e in episodes]) for key in episodes[0].scores},
        "final_observation": np.stack([e.final_observation for e in episodes]),
    }
    return _batch(values, kept.episode_schema(spaces))


def _batch(values: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [kept.to_arrow(values[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _serialise(batch: pa.RecordBatch) -> bytes:
    """Return an Arrow IPC file (Feather V2) of one record batch, whose columns can be mapped."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = memoryview(sink.getvalue())  # type: ignore[assignment]  # no copy
    return data
