"""What a stored generation of a run holds; written last, so its presence makes it complete."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

VERSION = 1
"""Version of the layout; another one is refused."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StoredFile:
    """One file of a run directory."""

    name: str
    """Path within the run directory."""
    size: int
    """In bytes."""
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> StoredFile:
        """Describe a file."""
        return cls(name, len(data), hashlib.sha256(data).hexdigest())

    def fits(self, data: bytes) -> bool:
        """Say whether these are its bytes."""
        return self == StoredFile.of(self.name, data)


@dataclass(frozen=True)
class Manifest:
    """A generation: all files of a run as of one checkpoint."""

    generation: int
    """From 1; the greatest is the newest."""
    place: str
    """Folder of its files within the run's."""
    folder: str
    """Id of the run directory that it was stored from; see `storage_origin`."""
    files: tuple[StoredFile, ...]
    host: str = ""
    stored: str = ""
    """Wall-clock date, for people."""
    version: int = VERSION

    @classmethod
    def now(
        cls, generation: int, place: str, folder: str, files: tuple[StoredFile, ...]
    ) -> Manifest:
        """Return the manifest of what is stored now by this machine."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(generation, place, folder, files, platform.node(), date)

    def file(self, name: str) -> StoredFile | None:
        """Return a file's entry, or None if it has none."""
        return next((file for file in self.files if file.name == name), None)

    def encode(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read what :meth:`encode` returned.

        Raises:
            ValueError: It is damaged, or of another version.
        """
        manifest = msgspec.json.decode(data, type=cls)
        if manifest.version != VERSION:
            raise ValueError(f"version {manifest.version}; this distrlcc reads {VERSION}")
        for file in manifest.files:
            if file.name.startswith("/") or ".." in file.name.split("/"):
                raise ValueError(f"a file lies outside the run: {file.name!r}")
        return manifest
