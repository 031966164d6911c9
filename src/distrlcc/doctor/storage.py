"""Whether a storage can be written, and is the same on all machines."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distrlcc.doctor.row import Row, judged
from distrlcc.errors import DistrlccError
from distrlcc.storage import OPEN_SECONDS, Storage, within

STORAGE_SECONDS = 100.0
"""What a machine takes at most: to open it, to write and to read."""


@dataclass(frozen=True)
class Marks:
    """A folder in the storage in which each machine leaves a file."""

    place: str
    """Folder or URL, as given."""
    folder: str = ""
    """Name inside it."""

    @staticmethod
    def new(place: str) -> Marks:
        """Return marks that nobody else leaves."""
        return Marks(place, f".distrlcc-doctor-{uuid.uuid4().hex[:8]}")

    def open(self) -> Storage:
        """Open the place, which must be there: a folder may be where a mount is missing.

        Raises:
            DistrlccError: It cannot be opened.
            TimeoutError: It does not answer.
            FileNotFoundError: There is no such folder.
        """
        is_url = "://" in self.place
        if not is_url and not within(OPEN_SECONDS, Path(self.place).is_dir):
            raise FileNotFoundError(f"{self.place}: there is no such folder")
        storage = Storage(self.place, self.folder)
        storage.open(check=is_url)
        return storage


def leave(marks: Marks, name: str) -> str:
    """Leave this machine's mark and read it back; return what went wrong."""
    try:
        objects = marks.open()
        objects.write(name, name.encode())
        if objects.read(name) != name.encode():
            return f"{marks.place} gives back something else than was written"
    except (DistrlccError, OSError) as error:
        return str(error)
    return ""


def find(marks: Marks, names: list[str]) -> list[str]:
    """Return whose marks this machine does not find."""
    try:
        objects = marks.open()
        return [name for name in names if objects.read(name) != name.encode()]
    except (DistrlccError, OSError):
        return names


def sweep(marks: Marks) -> None:
    """Remove the marks, where that is possible."""
    with suppress(DistrlccError, OSError):
        marks.open().delete("", folder=True)


def storage_row(place: str, name: str, problem: str, missing: list[str]) -> Row:
    """Judge what a machine found."""
    shown = place.partition("?")[0]
    if problem:
        mount = "mount it, and let this user write there"
        return judged(
            "storage", name, problem,
            fail="see address and credentials" if "://" in place else mount,
        )  # fmt: skip
    if missing:
        return judged(
            "storage", name, f"{shown} is writable, but what {', '.join(missing)} wrote is not "
            "there", fail="mount the same storage at the same place on all machines",
        )  # fmt: skip
    return judged("storage", name, f"{shown} is writable")


def local_storage_row(place: str, name: str) -> Row:
    """Check a storage from this machine alone."""
    marks = Marks.new(place)
    problem = leave(marks, name)
    sweep(marks)
    return storage_row(place, name, problem, [])
