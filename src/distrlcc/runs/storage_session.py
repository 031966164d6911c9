"""A run that is stored: its name is claimed, what is missing here is fetched, its end is stored."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path

from distrlcc.errors import CheckpointError, DistrlccError, OutputError
from distrlcc.files import require_vacant
from distrlcc.runs.checkpoint import load_checkpoint
from distrlcc.runs.run_directory import take_lock
from distrlcc.runs.trackers import adopt
from distrlcc.storage import LATEST, Storage, StorageLostError, say


@contextmanager
def stored(storage: Storage, folder: Path, *, resume: bool) -> Iterator[None]:
    """Hold a run's name while it is trained, and see that its end is stored.

    A run that goes on is fetched if its directory here is missing or old; an old one is stored and
    kept beside. CheckpointError: no checkpoint to fetch is whole; OutputError.
    """
    storage.open(check=True)
    if not resume and storage.holds_run():
        raise OutputError(
            f"{storage} already holds a run: add --resume to go on with it, or give another --out"
        )
    with storage.claim():
        if resume:
            restore(storage, folder)
        try:
            yield
        except DistrlccError:
            with suppress(DistrlccError):  # the first one counts
                storage.push_if_new(folder)
            raise
        storage.push_end(folder, f"distrlcc train {go_on(folder, storage)}")


def go_on(out: Path, storage: Storage | None) -> str:
    """Return the options that go on with a run."""
    place = f" --storage {shlex.quote(storage.url)}" if storage is not None else ""
    return f"--resume --out {shlex.quote(str(out))}{place}"


def restore(storage: Storage, folder: Path) -> None:
    """Fetch a run where what is here is not the newest; store what was not. Raises as `stored`."""
    reason = ""
    if (folder / "config.toml").exists():
        # See whether what is here is whole and the newest.
        try:
            load_checkpoint(folder / LATEST)
            if storage.push_if_new(folder):
                say(f"stored what {folder} had not stored yet at {storage}")
        except CheckpointError as error:
            reason = str(error) if storage.holds_run() else ""
        except StorageLostError as error:
            reason = str(error)
        if not reason:
            return
    if folder.resolve() == Path.cwd():
        raise OutputError("a run is not fetched into the folder that you are in: go elsewhere")
    if reason:
        # Keep what is here under another name.
        names = (folder.with_name(f"{folder.name}-kept-{number}") for number in count(1))
        with take_lock(folder) or nullcontext():  # nothing trains it
            aside = folder.rename(next(name for name in names if not name.exists()))
        say(f"{reason}; {folder} is kept as {aside}")
    require_vacant(folder, {}, "is not empty and is not a run: give another --out")
    manifest, damage = storage.pull(folder)
    adopt(folder)
    for line in damage:
        say(f"{storage}: {line}; taking the generation before it")
    say(f"fetched {folder} from {storage} (stored {manifest.stored} by {manifest.host})")
