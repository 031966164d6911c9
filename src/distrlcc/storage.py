"""A run's durable copy at a URL: generations of its run directory, the newest two of them whole.

docs/storage.md shows what is there. No object is written twice. An older generation goes, its
manifest first, when two newer ones stand: a crash leaves the last two checkpoints. Few storages
have locks, and clocks differ: a process renews ``owner.json`` while it lives, and a newcomer takes
the name if it is not renewed. Credentials come from the environment, never from the URL.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import msgspec

from distrlcc.config import from_dict
from distrlcc.errors import CheckpointError, ConfigError, DistrlccError, OutputError, printable
from distrlcc.files import write_atomically
from distrlcc.filesystems import storage_error, storage_filesystem, within, write_object
from distrlcc.limits import limits
from distrlcc.processes import find_process

T = TypeVar("T")

LATEST, MANIFEST, OWNER = "checkpoints/latest.safetensors", "manifest.json", "owner.json"
VERSION = 1  # version of the layout; another one is refused
_MOST_BYTES = 1 << 48
_MOST_STALLS = 20  # an owner to be watched for more of this process's `Limits.stall` is damaged
_ORIGIN = ".storage"
_GENERATION = re.compile(r"(\d{6,})-[0-9a-f]{8}/")


class StorageLostError(OutputError):
    """The run goes on elsewhere: this process stores no more."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a run directory, by its path there."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0, le=_MOST_BYTES)]
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> StoredFile:
        """Describe a file."""
        return cls(name, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """A generation: all files of a run as of one checkpoint."""

    generation: int  # from 1; the greatest is the newest
    place: str  # folder of its files within the run's
    folder: str  # id of the run directory that it was stored from
    files: tuple[StoredFile, ...]
    host: str = ""
    stored: str = ""  # wall-clock date, for people
    version: int = VERSION
    run: str = ""
    epoch: int = 0  # which start of the run stored it, and the epoch of its leader then

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read a manifest; raises ValueError if it is damaged or of another version."""
        values = msgspec.json.decode(data)
        if isinstance(values, dict) and values.get("version", VERSION) != VERSION:
            raise ValueError(f"version {values['version']}; this distrlcc reads {VERSION}")
        try:
            manifest = from_dict(cls, values, source="manifest")
        except ConfigError as error:
            raise ValueError(error) from None
        for file in manifest.files:
            path = f"{manifest.place}/{file.name}"
            if file.name.startswith("/") or ".." in path.split("/") or not path.isprintable():
                raise ValueError(f"a file lies outside the run: {path!r}")
        return manifest


@dataclass(frozen=True)
class Owner:
    """The process that stores a run."""

    run: str  # id of the run's processes, the same for all of them; ``ID#1`` is a later attempt's
    host: str = ""
    pid: int = 0
    process: str = ""  # boot, namespace and start, which tell the process from others of its number
    beat: int = 0  # counts renewals
    watch: float = 0.0  # how long the owner wants to be watched before it is taken for gone, s

    def yields_to(self, other: Owner) -> bool:
        """Say whether another may take the name at once: it is of this run, or this one died."""
        here = self.process.rpartition("/")[0] == other.process.rpartition("/")[0] != ""
        if self.run == other.run or (here and _process(self.pid) != self.process):
            return True
        (own, _, before), (theirs, _, attempt) = self.run.partition("#"), other.run.partition("#")
        numbered = all(n.isdecimal() and len(n) < 9 for n in (before, attempt))
        return own == theirs and numbered and int(before) < int(attempt)


@dataclass(frozen=True)
class _Origin:
    """A run directory's note on what of the storage it holds, so that no later work is lost."""

    folder: str  # id of the run directory, wherever it lies
    seen: int = 0  # newest generation when it was fetched or stored; damaged ones count
    place: str = ""  # what this run directory, and no copy of it, stored last; empty: unknown

    @classmethod
    def of(cls, run: Path) -> _Origin:
        """Return a run directory's note, written now if missing."""
        try:
            return msgspec.json.decode((run / _ORIGIN).read_bytes(), type=cls)
        except (OSError, ValueError, RecursionError):
            return cls.write(run)

    def lacks(self, newest: Manifest) -> bool:
        """Say whether what is stored is of another run directory that went on without this one."""
        own = newest.place == self.place if self.place else newest.folder == self.folder
        return newest.generation > self.seen and not own

    @classmethod
    def write(
        cls, run: Path, origin: _Origin | None = None, check: Callable[[], None] = lambda: None
    ) -> _Origin:
        """Write a run directory's note, a new one by default; ``check`` as in `Storage.push`."""
        origin = origin or cls(uuid.uuid4().hex)
        write_atomically(run / _ORIGIN, msgspec.json.encode(origin), before_rename=check)
        return origin


class Storage:
    """The place of one run at a storage URL; it opens at first use and can be pickled."""

    def __init__(self, url: str, name: str, run: str = "") -> None:
        """Name a run's folder at a URL, empty: the URL; ``run`` is the same for all that store."""
        self.url, self.name, self.run = url, name, run
        self._opened: tuple[Any, str] | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Storage], tuple[str, str, str]]:
        return Storage, (self.url, self.name, self.run)

    def __str__(self) -> str:
        return f"{self.url.partition('?')[0].rstrip('/')}/{self.name}"

    def open(self, *, check: bool = False) -> tuple[Any, str]:
        """Return file system and path; with ``check`` see first that it can be written."""
        if self._opened is None or check:
            filesystem, path = storage_filesystem(self.url, check=check)
            self._opened = filesystem, f"{path}/{self.name}" if self.name else path
        return self._opened

    def write(self, name: str, data: bytes) -> None:
        """Write an object; in a folder the file is synced and renamed into place."""
        self._do(lambda filesystem, path: write_object(filesystem, path, data), name, len(data))

    def read(self, name: str, size: int = 0) -> bytes | None:
        """Return the bytes of an object of about a size, or None if it is missing."""

        def read(filesystem: Any, path: str) -> bytes | None:
            with suppress(FileNotFoundError), filesystem.open_input_stream(path) as file:
                return bytes(file.read())
            return None

        return self._do(read, name, size)

    def names(self) -> list[str]:
        """Return the names of all objects, in order."""
        from pyarrow import fs  # noqa: PLC0415 - a run without storage starts quicker without it

        def find(filesystem: Any, path: str) -> list[str]:
            below = fs.FileSelector(path, recursive=True, allow_not_found=True)
            files = (info.path for info in filesystem.get_file_info(below) if info.is_file)
            return sorted(PurePosixPath(file).relative_to(path).as_posix() for file in files)

        return self._do(find)

    def delete(self, name: str, *, folder: bool = False) -> None:
        """Delete an object, or a folder and all below; one that is gone does not matter."""

        def delete(filesystem: Any, path: str) -> None:
            with suppress(FileNotFoundError):
                (filesystem.delete_dir if folder else filesystem.delete_file)(path)

        self._do(delete, name)

    def _do(self, call: Callable[[Any, str], T], name: str = "", size: int = 0) -> T:
        filesystem, base = self.open()
        path = f"{base}/{name}" if name else base
        try:
            return within(lambda: call(filesystem, path), size)
        except Exception as error:  # fsspec's file systems raise what they please
            raise storage_error(self.url, error) from None

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Keep others from storing here as long as this process lives; raises OutputError."""
        # Watch another owner until it is certain that it is gone.
        stall, pid = limits().stall, os.getpid()
        own = Owner(self.run, platform.node(), pid, _process(pid), watch=stall)
        found = self.owner()
        if found is not None and not found.yields_to(own):
            process = f"process {found.pid} on {found.host}"
            watch = max(stall, min(found.watch, _MOST_STALLS * stall))
            say(f"{self} belongs to {process}; watching {watch:.0f} s whether it still runs")
            end = time.monotonic() + watch
            while (now := self.owner()) is not None and time.monotonic() < end:
                if now != found:
                    raise OutputError(
                        f"{self} is being stored by {process}; end that run first, or give "
                        "another --out"
                    )
                time.sleep(limits().retry)
        # Renew the note until the context ends or another process takes the name.
        stop = threading.Event()

        def renew() -> None:
            for beat in count(1):
                if stop.wait(stall / 3):
                    return
                with suppress(DistrlccError):  # the storage may come back
                    if not self._owns():
                        return
                    if not stop.is_set():
                        self.write(OWNER, msgspec.json.encode(replace(own, beat=beat)))

        # Hold the name meanwhile, and give it back if it is still held.
        self.write(OWNER, msgspec.json.encode(own))
        thread = threading.Thread(target=renew, name="storage claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(limits().retry)
            with suppress(DistrlccError):  # else the next one watches the note
                if self._owns():
                    self.delete(OWNER)

    def owner(self) -> Owner | None:
        """Return the process that stores here at present, or None."""
        for again in (True, False):
            if (data := self.read(OWNER)) is None:
                break
            with suppress(ValueError, RecursionError):
                return msgspec.json.decode(data, type=Owner)
            if again:
                time.sleep(limits().retry)  # some storages show a note that is half written
        return None

    def _owns(self) -> bool:
        owner = self.owner()
        return owner is not None and owner.run == self.run

    def _must_own(self) -> None:
        if not self._owns():
            raise StorageLostError(f"another run has taken {self} over")

    def holds_run(self) -> bool:
        """Say whether anything is stored under this name."""
        return bool(_manifests_in(self.names()))

    def read_config(self) -> str:
        """Return the newest whole ``config.toml``; see `pull` for what is raised."""
        damage: list[str] = []
        for manifest in self._manifests(damage):
            data = self.read(f"{manifest.place}/config.toml")
            if data and StoredFile.of("config.toml", data) in manifest.files:
                return data.decode(errors="replace")
            damage.append(f"{manifest.place}/config.toml is {'damaged' if data else 'missing'}")
        raise self._nothing(damage)

    def push(
        self,
        folder: Path,
        check: Callable[[], None] = lambda: None,
        leader: tuple[str, int] = ("", 0),
    ) -> Manifest:
        """Store a run directory, which may be written meanwhile, as a new generation.

        ``leader``: start time of the run, and the epoch of the process that stores. Raises
        OutputError if that fails; StorageLostError if another run has the name, or a leader of a
        greater epoch stores. ``check`` raises if another process has the run directory.
        """
        with self._lock:
            self._must_own()  # else each try would leave files that nobody deletes
            # The files, and the manifest last.
            names, files = self.names(), []
            number = 1 + max(map(_number, names), default=0)
            place = f"{number:06d}-{uuid.uuid4().hex[:8]}"
            for name, data in _run_files(folder):
                self.write(f"{place}/{name}", data)
                files.append(StoredFile.of(name, data))
            date, origin = datetime.now(UTC).isoformat(timespec="seconds"), _Origin.of(folder)
            where = platform.node(), date, VERSION
            found = Manifest(number, place, origin.folder, tuple(files), *where, *leader)
            self._must_own()
            text = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
            # Whoever takes over from now on sees these files, and gives a greater number.
            check()
            newest = next(self._manifests([]), found)
            if newest.run == found.run and newest.epoch > found.epoch:
                raise StorageLostError(f"another process stores {self} by now")
            _Origin.write(folder, _Origin(origin.folder, number - 1, place), check)
            self.write(f"{place}/{MANIFEST}", text)
            # Delete all but this generation and the newest before it, manifests first.
            kept = {name.split("/")[0] for name in _manifests_in(names)[-1:]}
            with suppress(DistrlccError):  # the next time
                for old in sorted({name.split("/")[0] for name in names if _number(name)} - kept):
                    self.delete(f"{old}/{MANIFEST}")
                    self.delete(old, folder=True)
        return found

    def push_if_new(self, folder: Path) -> bool:
        """Store a directory if it has a newer checkpoint; say so, or raise StorageLostError."""
        if not (folder / LATEST).exists():
            return False
        if (newest := next(self._manifests([]), None)) is not None:
            if _Origin.of(folder).lacks(newest):
                raise StorageLostError(
                    f"{self} has gone on without {folder} (stored {newest.stored} by {newest.host})"
                )
            if {StoredFile.of(*file) for file in _run_files(folder)} == set(newest.files):
                return False
        self.push(folder)
        return True

    def elsewhere(self, folder: Path) -> bool:
        """Say whether the run has gone on in another run directory."""
        newest = next(self._manifests([]), None)
        return newest is not None and _Origin.of(folder).lacks(newest)

    def push_end(self, folder: Path, remedy: str) -> None:
        """Store how a run ended; try for a while, then raise OutputError with the remedy."""
        seconds = limits().stop
        end = time.monotonic() + seconds
        for attempt in count():
            try:
                self.push_if_new(folder)
                break
            except OutputError as error:
                lost = isinstance(error, StorageLostError)
                if lost or time.monotonic() > end:
                    raise OutputError(
                        f"{folder} is saved here, but its end is not stored: {error}"
                        f"{'' if lost else f'; store it with: {remedy}'}"
                    ) from None
                if attempt == 0:
                    say(f"not stored: {error}; trying for {seconds:.0f} s more")
                time.sleep(limits().retry)
        if (folder / LATEST).exists():
            say(f"stored at {self}")

    def pull(self, folder: Path) -> tuple[Manifest, list[str]]:
        """Fetch the newest whole generation into a new folder; say of each newer one why not."""
        damage: list[str] = []
        part = folder.with_name(f".{folder.name}.part")
        seen = max(map(_number, self.names()), default=0)
        try:
            for manifest in self._manifests(damage):
                shutil.rmtree(part, ignore_errors=True)
                if fault := self._fetch(manifest, part):
                    damage.append(fault)
                    continue
                _Origin.write(part, _Origin(uuid.uuid4().hex, seen))
                part.replace(folder)
                return manifest, damage
        except OSError as error:
            raise OutputError(f"cannot write {folder}: {error.strerror}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
        raise self._nothing(damage)

    def copy_newest(self, folder: Path, names: Collection[str], most: int, after: int = 0) -> int:
        """Copy files of at most ``most`` bytes of the newest whole generation, if after ``after``.

        They get the date at which they were stored. Returns the generation, or ``after`` if none is
        newer.
        """
        for manifest in self._manifests([]):
            if manifest.generation <= after:
                break
            files = tuple(f for f in manifest.files if f.name in names and f.size <= most)
            if not self._fetch(replace(manifest, files=files), folder):
                with suppress(OSError, ValueError):  # the date is another program's
                    date = datetime.fromisoformat(manifest.stored).timestamp()
                    for file in files:
                        os.utime(folder / file.name, (date, date))
                return manifest.generation
        return after

    def _manifests(self, damage: list[str]) -> Iterator[Manifest]:
        """Yield complete generations, newest first; say of damaged manifests what is wrong."""
        for name in reversed(_manifests_in(self.names())):
            data = self.read(name)
            try:
                if data is not None:  # else deleted since
                    yield Manifest.decode(data)
            except (ValueError, RecursionError) as error:
                damage.append(f"{name} is damaged ({error})")

    def _fetch(self, manifest: Manifest, part: Path) -> str:
        for file in manifest.files:
            data = self.read(f"{manifest.place}/{file.name}", file.size)
            if data is None or StoredFile.of(file.name, data) != file:
                how = "is missing" if data is None else "is damaged"
                return f"{manifest.place}/{file.name} {how}"
            (part / file.name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(part / file.name, data)
        return ""

    def _nothing(self, damage: list[str]) -> DistrlccError:
        if damage:
            return CheckpointError(f"{self} has no whole checkpoint: {'; '.join(damage[:4])}")
        names = stored_runs(self.url)
        if self.name in names:
            return OutputError(f"{self} has no whole checkpoint: its first was cut off")
        shown = f"; its runs: {', '.join(names[:10])}" if names else ""
        return OutputError(f"storage {self.url} holds no run {self.name!r} to resume{shown}")


class StorageKeeper:
    """A thread that stores a run directory after its newest checkpoint, while training goes on.

    A store that failed is tried again after the next checkpoint.
    """

    def __init__(
        self, storage: Storage, folder: Path, check: Callable[[], None], leader: tuple[str, int]
    ) -> None:
        """Start the thread; the storage's name is claimed. For the rest see `Storage.push`."""
        self._push = partial(storage.push, folder, check, leader)
        self._storage = storage
        self._due, self._stop = threading.Event(), False
        self._news: list[str] = []
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that there is a new checkpoint; returns at once."""
        self._due.set()

    def news(self) -> list[str]:
        """Return what the user should hear since the last call: failures, and their end."""
        lines, self._news = self._news, []
        return lines

    def close(self) -> None:
        """Let the store that is under way end; what ends the run stores again."""
        self._stop = True
        self._due.set()
        self._thread.join(limits().stall)

    def _run(self) -> None:
        before = ""
        while self._due.wait() and not self._stop:
            self._due.clear()
            failure = ""
            try:
                self._push()
            except DistrlccError as error:
                failure = str(error)
            if failure != before:
                news = f"not stored: {failure}; training goes on"
                self._news.append(news if failure else f"stored again at {self._storage}")
            before = failure


def stored_runs(url: str) -> list[str]:
    """Return the names of the runs at a storage URL."""
    return sorted({name.split("/")[0] for name in Storage(url, "").names() if "/" in name})


def say(line: str) -> None:
    """Tell the user; a terminal that is gone, or none, ends nothing."""
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"distrlcc: {printable(line)}\n")
        sys.stderr.flush()


def _process(pid: int) -> str:
    """Return ``boot/namespace/start`` of a living process; nothing where Linux's /proc is not."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        if process := find_process(pid):
            return f"{boot}/{namespace}/{process.started}"
    return ""


def _run_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a run directory's files, the checkpoint first: so the metrics reach at least as far."""
    # The generation before has the checkpoint before; a generation copied by hand has a manifest.
    skipped = (LATEST, "checkpoints/previous.safetensors", MANIFEST)
    found = sorted(folder.rglob("*"))
    paths = [path for path in found if path.is_file() and not path.is_symlink()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    for name in (LATEST, *(n for n in names if n not in skipped and "/." not in f"/{n}")):
        try:
            yield name, (folder / name).read_bytes()
        except FileNotFoundError:
            if name == LATEST:
                raise OutputError(f"{folder} has no checkpoint to store yet") from None
        except OSError as error:
            raise OutputError(f"cannot read {folder / name}: {error.strerror}") from None


def _number(name: str) -> int:
    match = _GENERATION.match(name)
    return int(match[1]) if match else 0


def _manifests_in(names: list[str]) -> list[str]:
    return sorted((n for n in names if _number(n) and n.endswith(f"/{MANIFEST}")), key=_number)
