"""Files that are written whole or not at all."""

import fnmatch
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import OutputError, writing


def write_atomically(
    path: Path,
    data: bytes | Iterator[bytes],
    *,
    before_rename: Callable[[], None] | None = None,
    epoch: int = 0,
) -> None:
    """Write a file, whole or in pieces, as `write_together` writes several."""
    write_together(path.parent, {path.name: data}, before_rename=before_rename, epoch=epoch)


def write_output(path: Path, data: bytes | Iterator[bytes]) -> None:
    """Write a user's file: a link's target, into a device or a pipe; makes folders."""
    with writing(path):
        if not path.exists() or path.is_file():
            path = Path(os.path.realpath(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
            return
        with path.open("wb") as file:  # what a rename would replace
            file.writelines(data if isinstance(data, Iterator) else [data])


def require_output(path: Path, *inputs: str | os.PathLike[str]) -> None:
    """Raise OutputError if a user's file cannot be written, or is one that is read."""
    for name in inputs:
        with suppress(OSError):
            if os.path.samefile(path, name):
                raise OutputError(f"{path} is the file that is read; write to another")
    if path.is_dir():
        raise OutputError(f"{path} is a folder; expected a file")
    if not path.exists() or path.is_file():
        parents = Path(os.path.realpath(path)).parents
        require_writable(next(folder for folder in parents if folder.exists()))


def write_together(
    folder: Path,
    files: Mapping[str, bytes | Iterator[bytes]],
    *,
    before_rename: Callable[[], None] | None = None,
    epoch: int = 0,
) -> None:
    """Write files under temporary names and rename them, in order, once all are on the disk.

    The writer's ``epoch`` keeps temporary names apart; ``before_rename`` raises if another process
    has taken the folder. Raises OutputError; a full disk leaves no file.
    """
    temporary = {name: temporary_path(folder / name, epoch) for name in files}
    try:
        for name, data in files.items():
            with writing(folder / name), temporary[name].open("xb") as file:
                file.writelines(data if isinstance(data, Iterator) else [data])
                file.flush()
                os.fsync(file.fileno())
        if before_rename is not None:
            with writing(folder):
                before_rename()
        for name in files:
            with writing(folder / name):
                rename(temporary[name], folder / name, before_rename)
        with writing(folder):
            place = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(place)  # without it a power cut may undo the renames
            finally:
                os.close(place)
    finally:
        for path in temporary.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)


def crc32(text: str, arrays: Iterable[NDArray[Any]]) -> int:
    """Return a checksum of a text and of arrays with their shapes and types."""
    value = zlib.crc32(text.encode())
    for array in arrays:
        value = zlib.crc32(f"{array.dtype.str}{array.shape}".encode(), value)
        value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)
    return value


def rename(temporary: Path, path: Path, check: Callable[[], None] | None = None) -> None:
    """Rename a file into place; ``check`` says whether another process has removed it."""
    try:
        temporary.replace(path)
    except FileNotFoundError:
        if check is not None:
            check()
        raise


def temporary_path(path: Path, epoch: int = 0) -> Path:
    """Return a name beside a file's that no other process, and no other call, returns."""
    mark = f"{epoch}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return path.with_name(f".{path.name}.{mark}.tmp")


def remove_temporary(*folders: Path, epoch: int = 0) -> None:
    """Remove what writers of earlier epochs, or dead ones without any, have left or write now."""
    for path in (path for folder in folders for path in folder.glob(".*.tmp")):
        written, _, rest = path.name.split(".")[-2].partition("-")
        pid = rest.partition("-")[0]
        old = not (written.isascii() and written.isdigit()) or 0 < int(written) < epoch
        with suppress(OSError):
            if old or (written == "0" and not Path(f"/proc/{pid}").exists()):
                path.unlink(missing_ok=True)


def require_vacant(folder: Path, holds: Mapping[str, str], other: str) -> None:
    """Raise OutputError unless a folder is empty or missing; ``holds``: errors by file pattern."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; give a folder as --out")
    names = os.listdir(folder) if folder.exists() else []
    for pattern, what in {**holds, "*": other}.items():
        if fnmatch.filter(names, pattern):
            raise OutputError(f"{folder} {what}")


def require_writable(folder: Path) -> None:
    """Make a folder, and raise OutputError if it cannot be written, before work is lost."""
    with writing(folder, "; choose a place you may write to"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable.tmp"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may look as well


def refuse_links(*folders: Path) -> None:
    """Raise OutputError if a folder holds a link, by which a stranger's would write elsewhere."""
    for path in (path for folder in folders if folder.is_dir() for path in folder.iterdir()):
        with suppress(FileNotFoundError):  # gone since
            mode = path.lstat().st_mode
            if not (S_ISREG(mode) or S_ISDIR(mode)):
                what = "a link" if S_ISLNK(mode) else "not a regular file"
                raise OutputError(f"{path} is {what}: put a copy of its file there, or remove it")
