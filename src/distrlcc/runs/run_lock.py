"""The lock of a run's folder: one process writes there at a time."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import TextIO

from distrlcc.errors import OutputError


def take_lock(path: Path) -> TextIO | None:
    """Return the open lock file of a run's folder; None on a file system without locks.

    Raises:
        OutputError: Another process trains this run.
    """
    file = None
    try:
        file = (path / ".lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if file is not None:
            file.close()
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return None
        raise OutputError(f"{path} is being trained by another process") from None
    return file
