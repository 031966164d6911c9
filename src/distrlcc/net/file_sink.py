"""A file that arrives: under another name until it is whole, and gone if it never is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from distrlcc.transport.messages import Buffer

_SUFFIX = ".distrlcc-part"


class FileSink:
    """Takes bytes by offset; a `distrlcc.transport.stream.Sink`."""

    def __init__(self, folder: Path, name: str, session: int) -> None:
        """Create the temporary file, locked for as long as this process lives.

        Raises:
            OSError: It cannot be created.
        """
        self.path = folder / name
        self._partial = folder / f".{session:016x}{_SUFFIX}"
        self._file = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, offset: int, data: Buffer) -> None:
        """Store bytes."""
        os.pwrite(self._file, data, offset)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes that were stored."""
        return os.pread(self._file, length, offset)

    def keep(self) -> None:
        """Give the whole file its name.

        Raises:
            OSError: That fails, or there is a file of this name by now.
        """
        os.fsync(self._file)
        os.link(self._partial, self.path)  # unlike a rename it replaces nothing
        self.drop()

    def drop(self) -> None:
        """Let nothing remain under the temporary name."""
        self._partial.unlink(missing_ok=True)
        os.close(self._file)


def sweep(folder: Path) -> int:
    """Remove what receivers that were killed left; return how many files that were."""
    count = 0
    for path in folder.glob(f".*{_SUFFIX}"):
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
