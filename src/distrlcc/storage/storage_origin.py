"""A run directory's note on what of the storage it holds, so that no later work is overwritten."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from distrlcc.files import write_atomically
from distrlcc.storage.storage_manifest import Manifest

_NAME = ".storage"


@dataclass(frozen=True)
class Origin:
    """Which run directory this is, and what of the storage it had at its beginning."""

    folder: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Id of the run directory, wherever it lies."""
    seen: int = 0
    """Newest generation when it was fetched; damaged ones count."""

    def holds(self, manifest: Manifest) -> bool:
        """Say whether the run directory has all that a generation has."""
        return manifest.folder == self.folder or manifest.generation <= self.seen

    @classmethod
    def of(cls, run: Path) -> Origin:
        """Return a run directory's; note one where there is none.

        Raises:
            OutputError: It cannot be noted.
        """
        try:
            return msgspec.json.decode((run / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            origin = cls()
            origin.note(run)
            return origin

    def note(self, run: Path) -> None:
        """Write it into a run directory.

        Raises:
            OutputError: It cannot be written.
        """
        write_atomically(run / _NAME, msgspec.json.encode(self))
