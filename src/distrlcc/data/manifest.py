"""The format of a data set: its manifest, and the columns of its Arrow files.

``manifest.json`` is written last, so that its presence marks a whole data set. The columns have the
same names as in collections for offline RL.
"""

import warnings
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distrlcc.config import from_dict
from distrlcc.errors import DatasetError, reading

FORMAT = "distrlcc-trajectories"
VERSION, UNCHECKED = 3, 2  # of the files' layout, and the one before, without checksums
NAME = "manifest.json"
_SIZE = msgspec.Meta(ge=1, le=1 << 20)
_AGAIN = "; copy the data set again"


@dataclass(frozen=True)
class Spaces:
    """An agent's observations and actions."""

    observation: str  # one of `distrlcc.env.observations.OBSERVATIONS`
    observation_size: Annotated[int, _SIZE]  # numbers in one observation
    action: str  # one of `distrlcc.env.actions.ACTIONS`
    action_kind: Literal["discrete", "continuous"]
    action_size: Annotated[int, _SIZE]  # number of actions, or length of the action vector


@dataclass(frozen=True)
class Origin:
    """Where the trajectories come from."""

    scheme: str  # the expert that acts
    suites: tuple[str, ...]
    split: str
    seed: int
    num_envs: int
    disturb: float  # share of steps whose action was drawn at random
    env: str  # the environment's configuration, TOML
    versions: dict[str, str]  # of distrlcc, Python and the packages that shape the trajectories


@dataclass(frozen=True)
class Shard:
    """Whole episodes, in two files."""

    steps_file: str  # one row per step
    steps: int
    steps_bytes: int
    episodes_file: str  # one row per episode
    episodes: int
    episodes_bytes: int
    steps_crc: int | None = None
    episodes_crc: int | None = None  # CRC-32 of the files; None in older data sets


@dataclass(frozen=True)
class Manifest:
    """A whole data set."""

    spaces: Spaces
    origin: Origin
    steps: int
    episodes: int
    shards: tuple[Shard, ...]
    format: str = FORMAT
    version: int = VERSION
    crc: int | None = None  # CRC-32 of the manifest without this; None in older data sets


def read_manifest(folder: Path) -> Manifest:
    """Read a data set's manifest; raises DatasetError where it is missing, damaged or foreign."""
    path = folder / NAME
    if not path.is_file():
        if not folder.is_dir():
            raise DatasetError(f"no data set at {folder}; give a folder that collect wrote")
        if any(folder.glob("*.arrow")):
            raise DatasetError(
                f"{folder} is an unfinished data set (it has no {NAME}); collect it again"
            )
        raise DatasetError(f"{folder} is no data set (it has no {NAME}); expected one of collect's")
    with reading(DatasetError, f"{path} cannot be read", _AGAIN):
        values: Any = msgspec.json.decode(path.read_bytes())
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DatasetError(f"{path} is not the manifest of a distrlcc data set")
    if values.get("version") not in (VERSION, UNCHECKED):
        raise DatasetError(
            f"{path} has format version {values.get('version')!r}, this distrlcc reads version "
            f"{VERSION}; use the distrlcc that wrote it, or collect again"
        )
    with reading(DatasetError, f"{path} is damaged", _AGAIN):
        manifest = from_dict(Manifest, values, source=NAME)
    if manifest.version == UNCHECKED and manifest.crc is None:
        warnings.warn(
            f"{folder} has no checksums, as older data sets: damage would not show", stacklevel=2
        )
    elif manifest.version == UNCHECKED or manifest.crc != checksum(manifest):
        raise DatasetError(f"{path} is damaged: its checksum is wrong{_AGAIN}")
    _check(path, manifest)
    return manifest


def checksum(manifest: Manifest) -> int:
    """Return the CRC-32 that a manifest has."""
    return zlib.crc32(msgspec.json.encode(replace(manifest, crc=None), order="deterministic"))


def _check(path: Path, manifest: Manifest) -> None:
    """Refuse names that lead elsewhere and counts that do not add up."""
    shards = manifest.shards
    for name in (n for shard in shards for n in (shard.steps_file, shard.episodes_file)):
        if Path(name).name != name or not name.isprintable():
            raise DatasetError(f"{path} names the file {name!r}; expected a plain file name")
    for what, said in (("steps", manifest.steps), ("episodes", manifest.episodes)):
        total = sum(getattr(shard, what) for shard in shards)
        if said != total or said < 1:
            raise DatasetError(
                f"{path} is damaged: {said} {what}, and {total} in its shards; copy it again"
            )


OUTCOME_SIZE = 3


def step_schema(spaces: Spaces) -> pa.Schema:
    """Return the columns of a step: what was seen, what was done, what came of it."""
    return pa.schema(
        [
            ("episode", pa.int64()),
            ("step", pa.int32()),  # from 0
            ("observation", pa.list_(pa.float32(), spaces.observation_size)),
            ("action", _action_type(spaces)),  # taken
            ("expert_action", _action_type(spaces)),  # to imitate; another one where disturbed
            ("reward", pa.float32()),
            # Wasted share of the capacity, queueing delay (base RTTs, logarithmic above 1), loss.
            ("outcome", pa.list_(pa.float32(), OUTCOME_SIZE)),
            ("terminated", pa.bool_()),  # never: links do not end
            ("truncated", pa.bool_()),  # the episode's last step: bootstrap from its final one
        ]
    )


def episode_schema(spaces: Spaces) -> pa.Schema:
    """Return the columns of an episode."""
    return pa.schema(
        [
            ("episode", pa.int64()),
            ("link", pa.string()),  # the scenario's id
            ("first_row", pa.int64()),  # in the shard's file of steps
            ("steps", pa.int32()),
            ("return", pa.float64()),
            ("utilisation", pa.float64()),
            ("queueing_delay", pa.float64()),  # base RTTs
            ("loss", pa.float64()),
            ("final_observation", pa.list_(pa.float32(), spaces.observation_size)),
        ]
    )


def to_arrow(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return an array ``[R]`` or ``[R, size]`` as a column, without a copy where its type fits."""
    if pa.types.is_fixed_size_list(kind):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    return pa.array(values, kind)


def to_numpy(column: pa.Array) -> NDArray[Any]:
    """Return a column of numbers as an array ``[R]`` or ``[R, size]``, without a copy."""
    if pa.types.is_fixed_size_list(column.type):
        values: NDArray[Any] = column.flatten().to_numpy().reshape(len(column), -1)
        return values
    numbers: NDArray[Any] = column.to_numpy()
    return numbers


def _action_type(spaces: Spaces) -> pa.DataType:
    if spaces.action_kind == "discrete":
        return pa.int32()
    return pa.list_(pa.float32(), spaces.action_size)
