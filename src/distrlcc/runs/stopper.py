"""Ends a run in good order when the user or the system asks for it."""

import signal
import threading
import time
from types import FrameType
from typing import Any

from distrlcc.processes import heard

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by which users and systems end a run
_AGAIN_SECONDS = 0.3  # so soon after the first it is the same, sent to process and group


class Stopper:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a request; a second one interrupts at once."""

    newest = 0  # newest signal that any in this process has heard

    def __init__(self, *, launched: bool = False) -> None:
        """Enter the context to listen.

        A launcher may watch this process: it hears Ctrl-C and kills processes that do not end. A
        signal to the whole group may come here twice. Under nohup SIGHUP stays ignored.
        """
        self.signal = 0
        self._launched = launched
        self._old: dict[int, Any] = {}
        self._heard = 0.0

    def __enter__(self) -> "Stopper":
        if threading.current_thread() is threading.main_thread():
            for number in heard(SIGNALS):
                if not (self._launched and number == signal.SIGINT):
                    self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def request(self, number: int) -> None:
        """Ask for the end as if this signal had come."""
        self.signal = Stopper.newest = self.signal or number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal and not self._launched and now - self._heard > _AGAIN_SECONDS:
            raise KeyboardInterrupt
        self._heard = self._heard or now
        self.request(number)
