"""A thread that stores a run directory after its checkpoints, while training goes on."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from distrlcc.errors import DistrlccError
from distrlcc.storage.storage import Storage

_END_SECONDS = 10.0
"""Time that a store under way has when the run ends; what ends the run stores again."""


class StorageKeeper:
    """Stores the newest checkpoint; one that comes while another is under way waits for it.

    What fails is tried again after the next checkpoint. Nothing queues up: a checkpoint that was
    not stored when the next one is there is passed over.
    """

    def __init__(self, storage: Storage, folder: Path) -> None:
        """Start the thread.

        Args:
            storage: Where to; its name is claimed.
            folder: The run directory.
        """
        self._storage, self._folder = storage, folder
        self._due, self._stop = threading.Event(), False
        self._news: deque[str] = deque()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that there is a new checkpoint; returns at once."""
        self._due.set()

    def news(self) -> list[str]:
        """Return what the user should hear since the last call: failures, and their end."""
        lines = []
        while self._news:
            lines.append(self._news.popleft())
        return lines

    def close(self) -> None:
        """End after the store that is under way."""
        self._stop = True
        self._due.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while self._due.wait() and not self._stop:
            self._due.clear()
            try:
                self._storage.push(self._folder)
            except DistrlccError as error:
                if str(error) != self._failure:
                    self._news.append(f"not stored: {error}; training goes on")
                self._failure = str(error)
            else:
                if self._failure:
                    self._news.append(f"stored again at {self._storage}")
                self._failure = ""
