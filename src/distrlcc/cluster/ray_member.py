"""A Ray actor that trains, as the process that started the run sees it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from distrlcc.cluster.session import require_ray
from distrlcc.errors import DistrlccError
from distrlcc.runs.feed import News, show
from distrlcc.runs.progress import Progress

SILENT_SECONDS = 20.0
"""A member that answers nothing for this long is given up, s."""
_THREADS = 4
_TICK = 0.2


class MemberGoneError(Exception):
    """The actor died, failed or is silent; the message says how."""


class RayMember:
    """Calls one actor, asks it for its news, and judges its silence."""

    def __init__(self, name: str, kind: type, options: dict[str, Any]) -> None:
        """Have the actor made; it begins when there is room.

        Args:
            name: For messages.
            kind: Its class, with `train`, `news` and `stop`.
            options: Where it has room.
        """
        self._ray = require_ray()
        self.name = name
        self.actor = self._ray.remote(kind).options(
            max_concurrency=_THREADS, max_restarts=0, max_task_retries=0, **options
        ).remote()  # fmt: skip
        self.said: list[str] = []
        """Text for standard output, to be written when the progress is over."""
        self._training: Any = None
        self._asked: Any = None
        self._heard = 0.0  # never, as long as there is no room for it
        self._stopped = False

    def call(self, method: str, *args: Any, seconds: float, stopping: Callable[[], bool]) -> Any:
        """Return an answer.

        Args:
            method: What to call.
            args: Its arguments.
            seconds: How long to wait, s.
            stopping: Asked again and again; True waits no longer.

        Raises:
            MemberGoneError: There is none in time.
            DistrlccError: What the method raised.
        """
        reference = getattr(self.actor, method).remote(*args)
        deadline = monotonic() + seconds
        while not self._ray.wait([reference], timeout=_TICK)[0]:
            if stopping() or monotonic() > deadline:
                raise MemberGoneError(f"{self.name} has not begun")
        answer = self._get(reference, 0.0)
        self._heard = monotonic()
        return answer

    def train(self, *args: Any) -> None:
        """Begin to train."""
        self._training = self.actor.train.remote(*args)

    def stop(self, number: int) -> None:
        """Ask it once to save and end."""
        if not self._stopped:
            self._stopped = True
            self.actor.stop.remote(number)

    def poll(self, progress: Progress) -> int | None:
        """Show its news; return what training returned, None while it goes on.

        Raises:
            MemberGoneError: It died, or has been silent for too long.
            DistrlccError: What training raised.
        """
        if self._asked is None:
            self._asked = self.actor.news.remote()
        ready, _ = self._ray.wait([self._asked], timeout=0.0)
        if ready:
            self._see(progress)
        ended, _ = self._ray.wait([self._training], timeout=0.0)
        if ended:
            result = int(self._get(self._training, 0.0))
            self._asked = self._asked or self.actor.news.remote()
            self._see(progress)  # what it said last
            return result
        if self._heard and monotonic() - self._heard > SILENT_SECONDS:
            raise MemberGoneError(f"{self.name} has not answered for {SILENT_SECONDS:.0f} s")
        return None

    def _see(self, progress: Progress) -> None:
        asked, self._asked = self._asked, None
        news: News = self._get(asked, SILENT_SECONDS)
        show(news, progress)
        self.said += news.said
        self._heard = monotonic()

    def kill(self) -> None:
        """End it at once."""
        self._ray.kill(self.actor, no_restart=True)

    def _get(self, reference: Any, seconds: float) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=seconds)
        except errors.GetTimeoutError:
            raise MemberGoneError(f"{self.name} has not answered for {seconds:.0f} s") from None
        except errors.RayTaskError as error:
            if isinstance(error.cause, DistrlccError):
                raise error.cause from None
            raise MemberGoneError(f"{self.name} failed: {_last_line(error)}") from None
        except errors.RayActorError as error:
            raise MemberGoneError(f"{self.name} is gone: {death(error)}") from None


def death(error: Exception) -> str:
    """Return why Ray says that an actor is gone, in a few words."""
    text = " ".join(str(error).split()).lower()
    for words, reason in (
        ("node died", "its machine is gone"),
        ("node was terminated", "its machine is gone"),
        ("unavailable", "it cannot be reached"),
        ("ray.kill", "it was given up"),
        ("owner", "its trainer is gone"),
        ("process", "its process died"),
    ):
        if words in text:
            return reason
    return _last_line(error)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
