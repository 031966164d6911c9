"""A run's durable copy at a URL: generations of its run directory, the newest two of them whole.

::

    URL/NAME/
    ├── owner.json                  who stores here at present (`storage_claim`)
    ├── 000011-5f0c9a3e/            a generation: the run directory as of one checkpoint
    │   ├── config.toml, metrics.jsonl, policy.safetensors, checkpoints/latest.safetensors, …
    │   └── manifest.json           names, sizes and SHA-256 of its files; written last
    └── 000012-b81d27f4/

No object is written twice, and an older generation goes only when two newer ones stand, so a crash
at any moment leaves the last two checkpoints. A generation is deleted manifest first. Each stands
alone: it can be copied with any tool and resumed, and damage to one does not reach the other.
A `Storage` can be pickled, and opens its place where it is first used.
"""

from __future__ import annotations

import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distrlcc.errors import CheckpointError, DistrlccError, OutputError
from distrlcc.files import write_atomically
from distrlcc.storage.storage_claim import Claim, owns
from distrlcc.storage.storage_manifest import MANIFEST, Manifest, StoredFile
from distrlcc.storage.storage_objects import Objects
from distrlcc.storage.storage_origin import Origin

_KEPT = 2
"""Generations that are kept."""
LATEST = "checkpoints/latest.safetensors"
_GENERATION = re.compile(r"(\d{6,})-[0-9a-f]{8}/")
_SKIPPED = (
    "checkpoints/previous.safetensors",  # the generation before has it
    MANIFEST,  # of a generation that was copied by hand
)
_LOCK_SECONDS = 120.0


class StorageLostError(OutputError):
    """A run that goes on somewhere else, so that this one stores no more."""


@dataclass(frozen=True)
class Fetched:
    """What was fetched, and which newer generations were not whole."""

    manifest: Manifest
    damage: tuple[str, ...]
    """One line for each."""


class Storage:
    """The place of one run at a storage URL."""

    def __init__(self, url: str, name: str, run: str = "") -> None:
        """Name a place; nothing is opened yet.

        Args:
            url: See `storage_url`.
            name: The run's name, one folder.
            run: Id of the run's processes, the same for all that store in turn.
        """
        self.url, self.name, self.run = url, name, run
        self._objects: Objects | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Storage], tuple[str, str, str]]:
        return Storage, (self.url, self.name, self.run)

    def __str__(self) -> str:
        return f"{self.url.partition('?')[0].rstrip('/')}/{self.name}"

    def open(self, *, check: bool = False) -> Objects:
        """Open the place.

        Args:
            check: See that it can be written.

        Raises:
            ConfigError: See `storage_filesystem`.
            OutputError: See `storage_filesystem`.
        """
        if self._objects is None or check:
            self._objects = Objects(self.url, self.name, check=check)
        return self._objects

    def claim(self) -> Claim:
        """Return a context that keeps others from storing under this name."""
        return Claim(self.open(), str(self), self.run)

    def holds_run(self) -> bool:
        """Say whether anything is stored under this name.

        Raises:
            OutputError: The storage cannot be read.
        """
        return bool(_manifests_in(self.open().names()))

    def newest(self) -> Manifest | None:
        """Return the newest complete generation's manifest, or None if there is none.

        Raises:
            OutputError: The storage cannot be read.
        """
        return next((entry for entry in self._manifests() if isinstance(entry, Manifest)), None)

    def read_config(self) -> str:
        """Return the newest whole ``config.toml``.

        Raises:
            CheckpointError: None is whole.
            OutputError: There is no such run, or the storage cannot be read.
        """
        for entry in self._manifests():
            if isinstance(entry, Manifest):
                file = entry.file("config.toml")
                data = self.open().read(f"{entry.place}/config.toml")
                if file is not None and data is not None and file.fits(data):
                    return data.decode()
        raise self._nothing()

    def push(self, folder: Path) -> Manifest:
        """Store a run directory as it is now, as a new generation.

        Args:
            folder: The run directory, with a checkpoint in it; it may be written meanwhile.

        Raises:
            OutputError: It cannot be stored.
            StorageLostError: Another run has taken the name over.
        """
        objects = self.open()
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise OutputError(f"storage {self}: the store before has not ended")
        try:
            names = objects.names()
            number = 1 + max((_number(name) for name in names), default=0)
            place, entries = f"{number:06d}-{uuid.uuid4().hex[:8]}", []
            for name, data in run_files(folder):
                objects.write(f"{place}/{name}", data)
                entries.append(StoredFile.of(name, data))
            manifest = Manifest.now(number, place, Origin.of(folder).folder, tuple(entries))
            if not owns(objects, self.run):
                raise StorageLostError(f"another run has taken {self} over")
            objects.write(f"{place}/{MANIFEST}", manifest.encode())
            with suppress(DistrlccError):  # the next time
                _tidy(objects, names)
        finally:
            self._lock.release()
        return manifest

    def pull(self, folder: Path) -> Fetched:
        """Fetch the newest whole generation into a folder that is empty or does not exist.

        Raises:
            CheckpointError: None is whole.
            OutputError: There is no such run, or the folder cannot be written.
        """
        damage: list[str] = []
        part = folder.with_name(f".{folder.name}.part")
        seen = max(map(_number, self.open().names()), default=0)
        for entry in self._manifests():
            fault = entry if isinstance(entry, str) else self._fetch(entry, part)
            if fault or isinstance(entry, str):
                damage.append(fault)
                continue
            Origin(seen=seen).note(part)
            try:
                part.replace(folder)
            except OSError as error:
                raise OutputError(f"cannot write {folder}: {error.strerror}") from None
            return Fetched(entry, tuple(damage))
        raise self._nothing(damage)

    def is_current(self, folder: Path, *, whole: bool) -> bool:
        """Say whether the newest generation has a run directory's checkpoint.

        Args:
            folder: The run directory.
            whole: All its files, too.

        Raises:
            OutputError: The storage or the run directory cannot be read.
            StorageLostError: The run has gone on in another run directory.
        """
        newest = self.newest()
        if newest is None:
            return False
        if not Origin.of(folder).holds(newest):
            raise StorageLostError(
                f"{self} has gone on without {folder} (stored {newest.stored} by {newest.host})"
            )
        files = run_files(folder)
        own = {name: StoredFile.of(name, data) for name, data in files if whole or name == LATEST}
        stored = {file.name: file for file in newest.files if whole or file.name == LATEST}
        return own == stored

    def _manifests(self) -> Iterator[Manifest | str]:
        """Yield complete generations, newest first; of a damaged manifest what is wrong."""
        objects = self.open()
        for name in reversed(_manifests_in(objects.names())):
            data = objects.read(name)
            if data is None:  # deleted since
                continue
            try:
                yield Manifest.decode(data)
            except (ValueError, msgspec.DecodeError) as error:
                yield f"{name} is damaged ({error})"

    def _fetch(self, manifest: Manifest, part: Path) -> str:
        """Fetch a generation; return what is wrong with it, or nothing."""
        objects, place = self.open(), manifest.place
        try:
            shutil.rmtree(part, ignore_errors=True)
            for file in manifest.files:
                data = objects.read(f"{place}/{file.name}")
                if data is None or not file.fits(data):
                    how = "is missing" if data is None else "is damaged"
                    shutil.rmtree(part, ignore_errors=True)
                    return f"{place}/{file.name} {how}"
                (part / file.name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(part / file.name, data)
        except OSError as error:
            raise OutputError(f"cannot write {part}: {error.strerror}") from None
        return ""

    def _nothing(self, damage: list[str] | None = None) -> DistrlccError:
        if damage:
            return CheckpointError(f"{self} has no whole checkpoint: {'; '.join(damage[:4])}")
        names = stored_runs(self.url)
        shown = f"; its runs: {', '.join(names[:10])}" if names else ""
        return OutputError(f"storage {self.url} holds no run {self.name!r} to resume{shown}")


def stored_runs(url: str) -> list[str]:
    """Return the names of the runs at a storage URL.

    Raises:
        ConfigError: See `storage_filesystem`.
        OutputError: See `storage_filesystem`.
    """
    return Objects(url, "", check=False).folders()


def run_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of a run directory's files, the checkpoint first.

    So the metrics, which are only added to, reach at least as far; the rest is dropped on resuming.

    Raises:
        OutputError: There is no checkpoint, or a file cannot be read.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    kept = [n for n in names if n not in (LATEST, *_SKIPPED) and not _is_hidden(n)]
    for name in (LATEST, *kept):
        try:
            yield name, (folder / name).read_bytes()
        except FileNotFoundError:
            if name == LATEST:
                raise OutputError(f"{folder} has no checkpoint to store yet") from None
        except OSError as error:
            raise OutputError(f"cannot read {folder / name}: {error.strerror}") from None


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _number(name: str) -> int:
    """Return the generation that an object is of, or 0 if it is of none."""
    match = _GENERATION.match(name)
    return int(match[1]) if match else 0


def _manifests_in(names: list[str]) -> list[str]:
    """Return the names that are manifests, oldest first."""
    return sorted((n for n in names if _number(n) and n.endswith(f"/{MANIFEST}")), key=_number)


def _tidy(objects: Objects, names: list[str]) -> None:
    """Delete what may go of what was there before the newest generation, manifests first."""
    complete = _manifests_in(names)
    kept = {name.split("/")[0] for name in complete[max(len(complete) - _KEPT + 1, 0) :]}
    for place in sorted({name.split("/")[0] for name in names if _number(name)} - kept):
        objects.delete(f"{place}/{MANIFEST}")
        objects.delete_folder(place)
