"""Named bytes at a storage URL: written whole, read, listed and deleted, each within a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from distrlcc.errors import DistrlccError
from distrlcc.files import write_atomically
from distrlcc.storage.storage_url import is_folder, storage_error, storage_filesystem, within

T = TypeVar("T")

_SECONDS = 30.0
"""Time that one operation may take; for each `_BYTES_PER_SECOND` of data a second more."""
_BYTES_PER_SECOND = 500_000


class Objects:
    """The objects below a folder of a storage. In a file system they are files."""

    def __init__(self, url: str, folder: str, *, check: bool) -> None:
        """Open the storage.

        Args:
            url: See `storage_url`.
            folder: Name within it, which need not exist.
            check: See `storage_filesystem`.

        Raises:
            ConfigError: See `storage_filesystem`.
            OutputError: See `storage_filesystem`.
        """
        self._url = url
        self._filesystem, path = storage_filesystem(url, check=check)
        self._base = f"{path}/{folder}" if folder else path
        self._is_folder = is_folder(self._filesystem)

    def write(self, name: str, data: bytes) -> None:
        """Write an object; a file is synced and renamed into place.

        Raises:
            OutputError: It cannot be written.
        """
        path = f"{self._base}/{name}"
        write = _write_file if self._is_folder else self._write
        self._do(len(data), lambda: write(path, data))

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, or None if there is none.

        Raises:
            OutputError: It cannot be read.
        """
        info = self._do(0, lambda: self._filesystem.get_file_info(f"{self._base}/{name}"))
        if not info.is_file:
            return None

        def read() -> bytes | None:
            try:
                with self._filesystem.open_input_stream(info.path) as file:
                    return bytes(file.read())
            except FileNotFoundError:  # it has been deleted since
                return None

        return self._do(info.size or 0, read)

    def names(self) -> list[str]:
        """Return the names of all objects, in order.

        Raises:
            OutputError: They cannot be listed.
        """
        base = PurePosixPath(self._base)
        return sorted(
            PurePosixPath(info.path).relative_to(base).as_posix()
            for info in self._list(recursive=True)
            if info.is_file
        )

    def folders(self) -> list[str]:
        """Return the names of the folders at the top, in order.

        Raises:
            OutputError: They cannot be listed.
        """
        return sorted(info.base_name for info in self._list(recursive=False) if not info.is_file)

    def delete(self, name: str) -> None:
        """Delete an object; one that is gone already does not matter.

        Raises:
            OutputError: It cannot be deleted.
        """
        self._do(0, lambda: self._delete(f"{self._base}/{name}"))

    def delete_folder(self, name: str) -> None:
        """Delete all objects below a folder, in any order.

        Raises:
            OutputError: They cannot be deleted.
        """
        self._do(0, lambda: self._filesystem.delete_dir(f"{self._base}/{name}"))

    def _list(self, *, recursive: bool) -> list[Any]:
        from pyarrow import fs  # noqa: PLC0415 - as in storage_url

        selector = fs.FileSelector(self._base, recursive=recursive, allow_not_found=True)
        found: list[Any] = self._do(0, lambda: self._filesystem.get_file_info(selector))
        return found

    def _write(self, path: str, data: bytes) -> None:
        if self._filesystem.type_name != "s3":  # S3 has no folders
            self._filesystem.create_dir(path.rpartition("/")[0])
        with self._filesystem.open_output_stream(path) as file:
            file.write(data)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def _do(self, size: int, call: Callable[[], T]) -> T:
        try:
            return within(_SECONDS + size / _BYTES_PER_SECOND, call)
        except DistrlccError:
            raise
        except Exception as error:  # fsspec's file systems raise what they please
            raise storage_error(self._url, error) from None


def _write_file(path: str, data: bytes) -> None:
    place = Path(path)
    missing = [folder for folder in place.parents if not folder.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, data)
    for folder in missing:
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
