"""A file that is sent: chunks by offset, and its SHA-256 as it is read."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from distrlcc.errors import LinkError


class FileSource:
    """Reads a file that must not change meanwhile; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            LinkError: It cannot be read.
        """
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
        except OSError as error:
            raise LinkError(f"{path}: cannot be read ({error.strerror})") from None
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._file)
            raise LinkError(f"{path}: is no regular file; pack a folder into an archive first")
        self.size = found.st_size
        self._digest, self._digested = hashlib.sha256(), 0

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes; new ones are read in order, and digested once.

        Raises:
            LinkError: The file has become shorter, or cannot be read any more.
        """
        try:
            data = os.pread(self._file, length, offset)
        except OSError as error:
            raise LinkError(f"{self.path}: cannot be read ({error.strerror})") from None
        if len(data) < length:
            raise LinkError(f"{self.path}: became shorter while it was sent; send it again")
        if offset == self._digested:
            self._digest.update(data)
            self._digested += length
        return data

    def digest(self) -> bytes:
        """Return the SHA-256 of what was read."""
        return self._digest.digest()
