"""Which process writes a run's folder: the one with the newest epoch, a number that only grows.

A frozen leader may be replaced unknowingly. So the next leaves its epoch in the folder (a fencing
token), then removes temporary files of earlier ones: a former leader finds that epoch, or its
rename fails. Each rename comes after a look, and each temporary file before it.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from distrlcc.errors import OutputError, writing
from distrlcc.files import remove_temporary, write_atomically

_RUN, _EPOCH = ".run", ".epoch-"


class FencedError(OutputError):
    """Another process writes the run's folder by now."""

    exit_code = 3


class SupersededError(FencedError):
    """It is a later rank 0 of the same run."""


def run_of(folder: Path) -> str | None:
    """Return the id of the run that writes to a folder, if it has one."""
    try:
        return (folder / _RUN).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def mark_run(folder: Path, run: str) -> None:
    """Note which run writes to a folder from now on: no process of another one does any more."""
    write_atomically(folder / _RUN, run.encode())
    for path in folder.glob(f"{_EPOCH}*"):
        path.unlink(missing_ok=True)
    remove_temporary(folder, folder / "checkpoints", epoch=sys.maxsize)


class Leadership:
    """A process's right to write a run's folder, which it takes from whoever had it."""

    def __init__(
        self, folder: Path, run: str, epoch: int = 1, still_leads: Callable[[], bool] = lambda: True
    ) -> None:
        """Take a folder over from leaders of older epochs of the run that it was marked with.

        ``still_leads``: whether the others have not replaced this process meanwhile. Raises
        FencedError if another process has the folder already, and OutputError.
        """
        self._folder, self._run, self.epoch = folder, run, epoch
        self._still_leads = still_leads
        self.check()
        with writing(folder):
            (folder / f"{_EPOCH}{epoch}").touch()
        self.check()
        for path in folder.glob(f"{_EPOCH}*"):
            if _number(path) < epoch:
                path.unlink(missing_ok=True)
        remove_temporary(folder, folder / "checkpoints", epoch=epoch)

    def check(self) -> None:
        """Raise FencedError if another leads (SupersededError: in this run), or OutputError."""
        if (run := run_of(self._folder)) is None:
            raise OutputError(f"{self._folder} no longer holds a run; was it deleted?")
        newest = max(map(_number, self._folder.glob(f"{_EPOCH}*")), default=0)
        taken = f"another process has taken {self._folder} over; this one ends"
        if run != self._run:
            raise FencedError(taken)
        if newest > self.epoch or not self._still_leads():
            raise SupersededError(taken)


def _number(path: Path) -> int:
    number = path.name.removeprefix(_EPOCH)
    return int(number) if number.isascii() and number.isdigit() else 0
