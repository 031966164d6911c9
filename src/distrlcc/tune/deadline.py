"""Ends this process when a stop takes too long, as where Ray was sent the signal, too."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from distrlcc.runs.stopper import Stopper

STOP_SECONDS = 7.0
_POLL_SECONDS = 0.2


class Deadline:
    """A context in which a stop takes `STOP_SECONDS` at most.

    What Ray started on this machine ends with this process; what was reported is saved by then.
    """

    def __init__(self, stopper: Stopper, message: str) -> None:
        """Take who hears the stop, and the line to end with."""
        self._stopper, self._message = stopper, message
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deadline", daemon=True)

    def __enter__(self) -> Deadline:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.wait(_POLL_SECONDS):
            if self._stopper.signal:
                if not self._left.wait(STOP_SECONDS):
                    sys.stderr.write(self._message + "\n")
                    sys.stderr.flush()
                    os._exit(128 + self._stopper.signal)
                return
