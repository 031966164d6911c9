"""A file that arrives: under another name until it is whole, and gone if it never is."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from distrlcc.errors import OutputError
from distrlcc.transport.messages import Buffer

_SUFFIX = ".distrlcc-part"
_PARTIAL = re.compile(rf"\.[0-9a-f]{{16}}{re.escape(_SUFFIX)}")


class FileSink:
    """Takes bytes by offset; a `distrlcc.transport.stream.Sink`."""

    def __init__(self, folder: Path, name: str, session: int, size: int) -> None:
        """Create the temporary file, locked for as long as this process lives.

        Raises:
            OSError: It cannot be created.
        """
        self.path = folder / name
        self._size = size
        self._partial = folder / f".{session:016x}{_SUFFIX}"
        self._file = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.drop()
            raise

    def write(self, offset: int, data: Buffer) -> None:
        """Store bytes, all of them.

        Raises:
            OSError: There is no room, say.
        """
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self._file, rest, offset)  # may be a part, where a disk is full
            rest, offset = rest[count:], offset + count

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes that were stored."""
        return os.pread(self._file, length, offset)

    def keep(self) -> None:
        """Give the whole file its name; may take long, as all of it is stored first.

        Raises:
            OSError: That fails, the file is not whole, or there is one of this name by now.
        """
        try:
            os.fsync(self._file)
            found = os.fstat(self._file).st_size
            if found != self._size:
                raise OSError(0, f"{found} of {self._size} bytes were stored")
            os.link(self._partial, self.path)  # unlike a rename it replaces nothing
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            self.drop()

    def drop(self) -> None:
        """Let nothing remain under the temporary name, as far as the system allows."""
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)
        os.close(self._file)


def check_folder(folder: Path) -> None:
    """See that files can be put into a folder as `FileSink` does.

    Raises:
        OutputError: They cannot.
    """
    if not folder.is_dir():
        what = "is a file; expected a folder" if folder.exists() else "there is no such folder"
        raise OutputError(f"{folder}: {what}; make one first")
    probe, twin = (folder / f".{os.getpid():08x}{k:08x}{_SUFFIX}" for k in range(2))
    try:
        file = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.link(probe, twin)
        finally:
            os.close(file)
    except OSError as error:
        raise OutputError(
            f"{folder}: expected a folder that can be written, on a file system with locks and "
            f"hard links ({error.strerror})"
        ) from None
    finally:
        for path in (probe, twin):
            with suppress(OSError):
                path.unlink()


def sweep(folder: Path) -> int:
    """Remove what receivers that were killed left; return how many files that were."""
    count = 0
    for path in folder.glob(f".*{_SUFFIX}"):
        if not _PARTIAL.fullmatch(path.name):
            continue
        try:
            file = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            count += 1
        except OSError:  # its receiver lives
            pass
        finally:
            os.close(file)
    return count
