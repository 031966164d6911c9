"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from distrlcc.errors import OutputError


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, sync it and rename it into place.

    Raises:
        OutputError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # without it a power cut may undo the rename
        finally:
            os.close(folder)
    except OSError as error:
        if not isinstance(error, NotADirectoryError):
            temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def require_writable(folder: Path) -> None:
    """Make a folder and see that it can be written, before work is done that would be lost.

    Raises:
        OutputError: It cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}: {error.strerror}; choose a place you may write to"
        ) from None
