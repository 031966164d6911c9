"""What surrounds a run that is stored: claiming its name, fetching it, and storing its end."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distrlcc.errors import CheckpointError, DistrlccError, OutputError
from distrlcc.runs.checkpoint import load_checkpoint
from distrlcc.runs.run_lock import take_lock
from distrlcc.storage.storage import LATEST, Storage, StorageLostError

_LAST_SECONDS = 30.0
"""Time to store the end of a run where the storage does not answer, s; a store that is under way
has its own limits."""
_PAUSE = 2.0


@contextmanager
def stored(storage: Storage, folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold a run's name while it is trained, and see that its end is stored.

    A run that goes on is fetched where its directory is not on this machine, or lacks what was
    stored from elsewhere since: it is then kept under another name. A checkpoint here that is not
    stored yet is stored first.

    Args:
        storage: Where to.
        folder: The run directory, which may not exist yet.
        resume: Whether the run goes on.

    Raises:
        CheckpointError: The run is to be fetched, and no checkpoint of it is whole.
        OutputError: The place cannot be written, or another run has the name; at the end: the end
            could not be stored.
    """
    storage.open(check=True)
    if not resume and storage.holds_run():
        raise OutputError(f"{storage} already holds a run: add --resume to go on with it, or give "
                          "another --out")  # fmt: skip
    with storage.claim():
        if resume:
            _bring_together(storage, folder)
        try:
            yield
        except DistrlccError:
            with suppress(DistrlccError):  # the first one counts
                _store(storage, folder, whole=False)
            raise
        _store_end(storage, folder)


def go_on(out: Path, storage: Storage | None) -> str:
    """Return the options that go on with a run."""
    place = f" --storage {shlex.quote(storage.url)}" if storage is not None else ""
    return f"--resume --out {shlex.quote(str(out))}{place}"


def _bring_together(storage: Storage, folder: Path) -> None:
    """Fetch a run, or store what was not."""
    if (folder / "config.toml").exists():
        reason = _go_on_here(storage, folder)
        if not reason:
            return
        aside = _put_aside(folder)
        _say(f"{reason}; {folder} is kept as {aside}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is not empty and is not a run: give another --out")
    fetched = storage.pull(folder)
    for line in fetched.damage:
        _say(f"{storage}: {line}; taking the generation before it")
    manifest = fetched.manifest
    _say(f"fetched {folder} from {storage} (stored {manifest.stored} by {manifest.host})")


def _go_on_here(storage: Storage, folder: Path) -> str:
    """Store what was not; return why a run cannot go on from its directory here, or nothing."""
    try:
        load_checkpoint(folder / LATEST)
    except CheckpointError as error:
        return str(error) if storage.holds_run() else ""
    try:
        if _store(storage, folder, whole=False):
            _say(f"stored what {folder} had not stored yet at {storage}")
    except StorageLostError as error:
        return str(error)
    return ""


def _put_aside(folder: Path) -> Path:
    """Rename a run directory that nobody trains; return its new place."""
    lock = take_lock(folder)
    number = 1
    while (aside := folder.with_name(f"{folder.name}-kept-{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    except OSError as error:
        raise OutputError(f"cannot rename {folder}: {error.strerror}") from None
    finally:
        if lock is not None:
            lock.close()
    return aside


def _store(storage: Storage, folder: Path, *, whole: bool) -> bool:
    """Store a run directory if its checkpoint is not stored; say whether it was done."""
    if not _has_checkpoint(folder) or storage.is_current(folder, whole=whole):
        return False
    storage.push(folder)
    return True


def _has_checkpoint(folder: Path) -> bool:
    return (folder / LATEST).exists()


def _store_end(storage: Storage, folder: Path) -> None:
    """Store how a run ended; keep trying for a while.

    Raises:
        OutputError: It could not be stored.
    """
    begin, said = time.monotonic(), False
    while True:
        try:
            _store(storage, folder, whole=True)
        except OutputError as error:
            lost = isinstance(error, StorageLostError)
            if lost or time.monotonic() - begin > _LAST_SECONDS:
                remedy = f"; store it with: distrlcc train {go_on(folder, storage)}"
                raise OutputError(
                    f"{folder} is saved here, but its end is not stored: {error}"
                    f"{'' if lost else remedy}"
                ) from None
            if not said:
                _say(f"not stored: {error}; trying for {_LAST_SECONDS:.0f} s more")
                said = True
            time.sleep(_PAUSE)
        else:
            if _has_checkpoint(folder):
                _say(f"stored at {storage}")
            return


def _say(line: str) -> None:
    sys.stderr.write(f"distrlcc: {line}\n")
    sys.stderr.flush()
