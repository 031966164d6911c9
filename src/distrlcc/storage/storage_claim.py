"""Whose run is stored under a name: a note in the storage, renewed while its process lives.

No store that pyarrow reaches has locks for all, and clocks of machines differ. So who comes later
looks whether the note is renewed, and takes the name over if it is not; who has lost the name finds
another's note, and stores no more. On one machine the system says at once whether a process lives.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import msgspec

from distrlcc.errors import DistrlccError, OutputError
from distrlcc.processes import find_process
from distrlcc.storage.storage_objects import Objects

_NAME = "owner.json"
BEAT_SECONDS = 7.0
"""Time between two renewals."""
WATCH_SECONDS = 20.0
"""A note that is not renewed for this long is of a process that is gone."""
_TICK = 1.0


@dataclass(frozen=True)
class Owner:
    """Who stores."""

    run: str
    """Id of the run's processes, the same for all of them."""
    host: str = ""
    pid: int = 0
    process: str = ""
    """What tells the process from others of the same id: its system, namespace and start."""
    beat: int = 0
    """Counts renewals."""

    @classmethod
    def me(cls, run: str) -> Owner:
        """Return this process's note."""
        pid = os.getpid()
        return cls(run, platform.node(), pid, _process(pid))

    def may_replace(self, other: Owner) -> bool:
        """Say whether this is the same run's, or of a later attempt (``ID#1`` after ``ID#0``).

        Whoever started that has given the other up, though it may live on, cut off.
        """
        if self.run == other.run:
            return True
        (own, _, attempt), (theirs, _, before) = self.run.partition("#"), other.run.partition("#")
        return (
            own == theirs and attempt.isdigit() and before.isdigit() and int(attempt) > int(before)
        )

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended: it ran on this machine."""
        here = _process(os.getpid())
        if not self.process or not here or self.process.split("/")[:2] != here.split("/")[:2]:
            return False
        return _process(self.pid) != self.process


def _process(pid: int) -> str:
    """Return ``boot/namespace/start`` of a living process; nothing where Linux's /proc is not."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        if process := find_process(pid):
            return f"{boot}/{namespace}/{process.started}"
    return ""


class Claim:
    """A context that holds a run's name in a storage, for as long as this process lives."""

    def __init__(self, objects: Objects, place: str, run: str) -> None:
        """Take nothing yet.

        Args:
            objects: The run's part of the storage.
            place: How the user knows it.
            run: Id of the run's processes.
        """
        self._objects, self._place = objects, place
        self._owner = Owner.me(run)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="storage claim", daemon=True)

    def __enter__(self) -> Claim:
        """Take the name; where another process may live that has it, watch that for a while.

        Raises:
            OutputError: It lives.
        """
        found = read_owner(self._objects)
        if found is not None and not (found.is_dead or self._owner.may_replace(found)):
            self._watch(found)
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(_TICK)
        with suppress(DistrlccError):  # else the next one waits until it is sure
            if owns(self._objects, self._owner.run):
                self._objects.delete(_NAME)

    def _watch(self, found: Owner) -> None:
        """Wait until it is sure that the owner is gone.

        Raises:
            OutputError: It is not.
        """
        who = f"process {found.pid} on {found.host}"
        sys.stderr.write(
            f"distrlcc: {self._place} belongs to {who}; looking for {WATCH_SECONDS:.0f} s whether "
            "that still runs\n"
        )
        sys.stderr.flush()
        begin = time.monotonic()
        while time.monotonic() - begin < WATCH_SECONDS:
            time.sleep(_TICK)
            now = read_owner(self._objects)
            if now is None:
                return
            if now != found:
                raise OutputError(
                    f"{self._place} is being stored by {who}; end that run first, or give another "
                    "--out"
                )

    def _write(self) -> None:
        self._objects.write(_NAME, msgspec.json.encode(self._owner))

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with suppress(DistrlccError):  # the storage may come back
                if not owns(self._objects, self._owner.run):
                    return
                self._owner = replace(self._owner, beat=self._owner.beat + 1)
                if not self._stop.is_set():
                    self._write()


def read_owner(objects: Objects) -> Owner | None:
    """Return who stores a run at present.

    Raises:
        OutputError: The storage cannot be read.
    """
    data = objects.read(_NAME)
    try:
        return None if data is None else msgspec.json.decode(data, type=Owner)
    except msgspec.DecodeError:
        return None


def owns(objects: Objects, run: str) -> bool:
    """Say whether a run's processes have its name in the storage.

    Raises:
        OutputError: The storage cannot be read.
    """
    owner = read_owner(objects)
    return owner is not None and owner.run == run
