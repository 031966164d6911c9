"""What a data set is: ``manifest.json``, written last, so that its presence marks a whole one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from distrlcc.errors import DatasetError
from distrlcc.files import write_atomically

FORMAT = "distrlcc-trajectories"
VERSION = 2
"""Version of the files' layout; a data set of another version is refused."""
NAME = "manifest.json"


@dataclass(frozen=True)
class Spaces:
    """What an agent sees and does."""

    observation: str
    """One of `distrlcc.env.observations.OBSERVATIONS`."""
    observation_size: int
    """Numbers in one observation."""
    action: str
    """One of `distrlcc.env.actions.ACTIONS`."""
    action_kind: Literal["discrete", "continuous"]
    action_size: int
    """Number of actions, or length of the action vector."""


@dataclass(frozen=True)
class Origin:
    """Where the trajectories come from."""

    scheme: str
    """The expert that acts."""
    suites: tuple[str, ...]
    split: str
    seed: int
    num_envs: int
    disturb: float
    """Share of steps whose action was drawn at random."""
    env: str
    """The environment's configuration, TOML."""
    versions: dict[str, str]
    """Of distrlcc, Python and the packages that shape the trajectories."""


@dataclass(frozen=True)
class Shard:
    """Whole episodes, in two files."""

    steps_file: str
    """One row per step."""
    steps: int
    steps_bytes: int
    episodes_file: str
    """One row per episode."""
    episodes: int
    episodes_bytes: int


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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a data set whose files are all there.

    Raises:
        OutputError: It cannot be written.
    """
    text = json.dumps(msgspec.to_builtins(manifest), indent=2) + "\n"
    write_atomically(folder / NAME, text.encode())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a data set.

    Raises:
        DatasetError: There is none, or it is damaged, foreign or of another version.
    """
    path = folder / NAME
    if not path.is_file():
        if not folder.is_dir():
            raise DatasetError(f"no data set at {folder}; give a folder that collect wrote")
        if any(folder.glob("*.arrow")):
            raise DatasetError(
                f"{folder} is an unfinished data set (it has no {NAME}); collect it again"
            )
        raise DatasetError(f"{folder} is no data set (it has no {NAME}); expected one of collect's")
    try:
        values: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read ({error}); copy the data set again") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DatasetError(f"{path} is not the manifest of a distrlcc data set")
    if values.get("version") != VERSION:
        raise DatasetError(
            f"{path} has format version {values.get('version')!r}, this distrlcc reads version "
            f"{VERSION}; use the distrlcc that wrote it, or collect again"
        )
    try:
        manifest = msgspec.convert(values, Manifest)
    except msgspec.ValidationError as error:
        raise DatasetError(f"{path} is damaged ({error}); copy the data set again") from None
    _check(path, manifest)
    return manifest


def _check(path: Path, manifest: Manifest) -> None:
    """Refuse names that lead elsewhere and counts that do not add up."""
    shards = manifest.shards
    for name in (n for shard in shards for n in (shard.steps_file, shard.episodes_file)):
        if Path(name).name != name:
            raise DatasetError(f"{path} names the file {name!r}; expected a plain file name")
    for what, said in (("steps", manifest.steps), ("episodes", manifest.episodes)):
        total = sum(getattr(shard, what) for shard in shards)
        if said != total or said < 1:
            raise DatasetError(
                f"{path} is damaged: {said} {what}, and {total} in its shards; copy it again"
            )
