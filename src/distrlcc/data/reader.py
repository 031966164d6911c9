"""Reads a data set: its episodes' places in memory, its steps mapped from the disk as asked for."""

import hashlib
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distrlcc.data.manifest import NAME, episode_schema, read_manifest, step_schema, to_numpy
from distrlcc.errors import DatasetError, reading


class Steps(NamedTuple):
    """Steps as views of a shard's file: what learning needs of them."""

    observations: NDArray[np.float32]  # ``[R, D]``
    expert_actions: NDArray[Any]  # int32 ``[R]`` or float32 ``[R, A]``
    outcomes: NDArray[np.float32]  # ``[R, 3]``


class StoredData:
    """A data set on disk. Opening it reads the manifest and one row per episode, no steps."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder = Path(folder)
        self.manifest = read_manifest(folder)
        self.digest = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
        self._steps: dict[int, Steps] = {}
        for shard in self.manifest.shards:
            self._check_size(shard.steps_file, shard.steps_bytes)
            self._check_size(shard.episodes_file, shard.episodes_bytes)
        tables = [self.read_episodes(k) for k in range(len(self.manifest.shards))]
        self.shard: NDArray[np.int64] = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
        """Each episode's shard, ``[E]``."""
        self.first_row = np.concatenate([to_numpy(t["first_row"]) for t in tables])
        """Its first row in the shard, ``[E]``."""
        self.steps = np.concatenate([to_numpy(t["steps"]) for t in tables]).astype(np.int64)
        """Its number of steps, ``[E]``."""
        self._check_places()

    def read_steps(self, shard: int) -> pa.RecordBatch:
        """Map a shard's steps, all columns."""
        entry = self.manifest.shards[shard]
        schema = step_schema(self.manifest.spaces)
        return self._map(entry.steps_file, entry.steps, schema, entry.steps_crc)

    def read_episodes(self, shard: int) -> pa.RecordBatch:
        """Map a shard's episodes, all columns."""
        entry = self.manifest.shards[shard]
        schema = episode_schema(self.manifest.spaces)
        return self._map(entry.episodes_file, entry.episodes, schema, entry.episodes_crc)

    def mapped(self, shard: int) -> Steps:
        """Return views of a shard's steps, mapped once; raises DatasetError where it is damaged."""
        entry = self.manifest.shards[shard]
        self._check_size(entry.steps_file, entry.steps_bytes)  # what is cut would be SIGBUS
        if shard not in self._steps:
            batch, names = self.read_steps(shard), ("observation", "expert_action", "outcome")
            self._steps[shard] = Steps(*(to_numpy(batch[name]) for name in names))
        return self._steps[shard]

    def episode(self, index: int) -> Steps:
        """Return views of an episode's steps."""
        whole, first = self.mapped(int(self.shard[index])), int(self.first_row[index])
        rows = slice(first, first + int(self.steps[index]))
        return Steps(*(column[rows] for column in whole))

    def _check_size(self, name: str, size: int) -> None:
        path = self.folder / name
        try:
            found = path.stat().st_size
        except OSError:
            raise DatasetError(f"{path} is missing; copy the data set again") from None
        if found != size:
            raise DatasetError(
                f"{path} has {found} bytes, its manifest says {size}; copy the data set again"
            )

    def _map(self, name: str, rows: int, schema: pa.Schema, crc: int | None) -> pa.RecordBatch:
        path = self.folder / name
        # Closing gives back the file descriptor; the columns keep the mapping.
        with (
            reading(DatasetError, f"{path} cannot be read", "; copy the data set again"),
            pa.memory_map(str(path)) as source,
        ):
            if crc not in (None, zlib.crc32(source.read_buffer())):
                raise DatasetError(f"{path} is damaged: its checksum is wrong; copy it again")
            file = pa.ipc.open_file(source)
            batch = file.get_batch(0) if file.num_record_batches == 1 else None
            fits = batch is not None and batch.schema.equals(schema) and batch.num_rows == rows
            fits = fits and not _nulls(batch)
        if not fits:
            raise DatasetError(
                f"{path} does not hold the {rows} rows and the columns that its manifest says; "
                "copy the data set again"
            )
        return batch

    def _check_places(self) -> None:
        for number, entry in enumerate(self.manifest.shards):
            own = self.shard == number
            first, steps = self.first_row[own], self.steps[own]
            ends = np.cumsum(steps)
            whole = len(steps) and steps.min() > 0 and ends[-1] == entry.steps
            if not whole or (first != ends - steps).any():
                raise DatasetError(
                    f"{self.folder / entry.episodes_file}: its episodes do not fill the shard's "
                    f"{entry.steps} steps; copy the data set again"
                )


def _nulls(batch: pa.RecordBatch) -> int:
    """Count the values that are missing; raise ArrowInvalid where the columns are not whole."""
    batch.validate()
    listed = (c.flatten() for c in batch.columns if pa.types.is_fixed_size_list(c.type))
    return sum(column.null_count for column in (*batch.columns, *listed))
