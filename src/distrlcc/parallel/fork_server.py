"""Preloaded by a launcher's fork server, which then removes its own socket if nothing else can."""

import os
import socket
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

from distrlcc.processes import LAUNCHER

PID = os.getpid()
"""The fork server's, as its forks know it: they die with it, even if it died before they asked."""
_LAUNCHER = int(os.environ.pop(LAUNCHER, os.getppid()))  # it may be gone by now


def _remove(path: Path, launcher: int) -> None:
    if os.getppid() != launcher:  # it was killed; else it removes its folder itself
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()


for _number in map(int, os.listdir("/proc/self/fd")):
    with suppress(OSError):
        _found = socket.socket(fileno=_number)
        _path = Path(str(_found.getsockname()))
        if _path.parent.name.startswith("pymp-"):  # multiprocessing's
            # Its forks do not inherit this.
            util.Finalize(None, _remove, (_path, _LAUNCHER), exitpriority=0)
        _found.detach()
