"""Copies of runs at a storage's URL: the files that the page reads, in a folder of its own.

The folder is removed at the end; the folder of a killed board goes when the next board begins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from distrlcc.errors import DistrlccError, OutputError
from distrlcc.storage import Owner, Storage, say, stored_runs

PREFIX = "distrlcc-board-"
EVERY_S = 30.0  # how often a storage is asked for what is new
MOST_RUNS, MOST_BYTES = 50, 64_000_000
"""Runs of a storage, and bytes of a file, that are fetched at most."""
FILES = ("config.toml", "versions.json", "metrics.jsonl", "workers.jsonl", "policy.safetensors")
_LEAST_AGE_S = 60.0


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder for this process's life, remove those of dead ones; raises OutputError."""
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX)
    except OSError as error:
        raise OutputError(f"no temporary folder ({error.strerror}); set TMPDIR to one") from None
    for old in Path(made.name).parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is another's, or in use
            status = old.lstat()
            age = time.time() - status.st_mtime  # noqa: TID251 - of a file
            if status.st_uid == os.getuid() and age > _LEAST_AGE_S:
                with _locked(old):
                    shutil.rmtree(old, ignore_errors=True)
    with made, _locked(Path(made.name)):
        yield Path(made.name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, which the kernel unlocks at the latest when this process dies."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


class Copies:
    """Runs at a URL, or the run there, as folders below one."""

    def __init__(self, url: str, folder: Path) -> None:
        """Fetch them a first time; raises ConfigError or OutputError where that cannot be."""
        self.url, self.folder = url, folder
        self._seen: dict[str, tuple[int, Owner | None]] = {}
        folder.mkdir()
        self._fetch()
        if not any(number for number, _ in self._seen.values()):
            raise OutputError(f"{url.partition('?')[0]}: holds no run; expected a --storage of one")
        threading.Thread(target=self._follow, name="copies", daemon=True).start()

    def _follow(self) -> None:
        before = ""
        while True:
            time.sleep(EVERY_S)
            failure = ""
            try:
                self._fetch()
            except DistrlccError as error:
                failure = str(error)
            if failure != before:
                say(f"not fetched: {failure}" if failure else f"fetched again from {self.url}")
            before = failure

    def _fetch(self) -> None:
        single = Storage(self.url, "").holds_run()
        names = [name for name in stored_runs(self.url) if name.strip(".")]
        for name in [""] if single else names[:MOST_RUNS]:
            last = PurePosixPath(self.url.partition("?")[0]).name.strip(".")
            storage, place = Storage(self.url, name), self.folder / (name or last or "run")
            number, before = self._seen.get(name, (0, None))
            number = storage.copy_newest(place, FILES, MOST_BYTES, after=number)
            owner = storage.owner()
            # Its owner renews its note while it lives.
            if before is not None and owner not in (None, before):
                with suppress(OSError):
                    os.utime(place / "metrics.jsonl")
            if not number and name not in self._seen:
                say(f"{storage} has no whole checkpoint yet, so that it is not shown")
            self._seen[name] = number, owner
