"""A Ray actor that trains, as the process that started the run sees it.

Ray starts an actor that died again, and runs its task again; what does not answer is killed here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from typing import Any

from distrlcc.cluster.nodes import last_line
from distrlcc.cluster.session import RayOptions, require_ray
from distrlcc.errors import DistrlccError
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import Progress
from distrlcc.runs.remote_progress import News, RemoteProgress, show
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import fresh_folder
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on

SILENT_SECONDS = 20.0
"""A member that answers nothing for this long is killed, s."""
TICK = 0.2
"""Time between two looks at the members, s."""
_THREADS = 4
_STOP_SECONDS = 30.0
_STORE_SECONDS = 60.0


class MemberGoneError(Exception):
    """The actor is gone for good; the message says how."""


class Trains:
    """What an actor that trains in one thread answers in others."""

    def __init__(self) -> None:
        """Do nothing yet."""
        self.feed = RemoteProgress()
        self.stopper = Stopper(launched=True)
        ray = require_ray()
        own = ray.get_runtime_context().get_actor_id()
        self.restarts = int(ray._private.state.actors(own)["NumRestarts"])
        """How often Ray has started this actor again."""

    def news(self) -> tuple[int, News]:
        """Return its restarts, and what is to be shown."""
        return self.restarts, self.feed.news()

    def stop(self, number: int) -> None:
        """Save and end, as if this signal had come."""
        self.stopper.request(number)


class Member:
    """Calls one actor, asks it for its news, and judges its silence."""

    def __init__(
        self,
        name: str,
        kind: type[Trains],
        options: dict[str, Any],
        job: tuple[Any, ...],
        restarts: int,
    ) -> None:
        """Have the actor made and train; it begins when there is room.

        Args:
            name: For messages.
            kind: Its class, with `train`.
            options: Where it has room.
            job: What `train` is called with.
            restarts: How often Ray starts it again; -1: always.
        """
        self._ray = require_ray()
        self.name, self._job = name, job
        limits = {"max_restarts": restarts, "max_task_retries": -1 if restarts else 0}
        kind_options = {"max_concurrency": _THREADS, **limits, **options}
        self.actor = self._ray.remote(kind).options(**kind_options).remote()
        self.said: list[str] = []
        """Text for standard output, to be written when the progress is over."""
        self.deaths = 0
        self._restarts = restarts
        self._training = self.actor.train.remote(*job)
        self._asked: Any = None
        self._heard = 0.0  # not since its start
        self._waiting_since = monotonic()
        self._stopped = False

    @property
    def waiting_seconds(self) -> float:
        """Time for which it has not begun, or begun again, s."""
        return 0.0 if self._heard else monotonic() - self._waiting_since

    def stop(self, number: int) -> None:
        """Ask it once to save and end."""
        if not self._stopped:
            self._stopped = True
            self.actor.stop.remote(number)

    def poll(self, progress: Progress) -> int | None:
        """Show its news; return what training returned, None while it goes on.

        Raises:
            MemberGoneError: It died, or has been silent for too long, and is not started again.
            DistrlccError: What training raised.
        """
        ended = self._ended(self._training)
        self._ask()
        if ended or self._ended(self._asked):
            self._see(progress)
        if ended:
            result = int(self._get(self._training))
            self._ask()
            self._see(progress)  # what it said last
            return result
        if self._heard and monotonic() - self._heard > SILENT_SECONDS:
            self._lost(f"has not answered for {SILENT_SECONDS:.0f} s", progress)
            self._ray.kill(self.actor, no_restart=False)
            self._asked = None
        return None

    def begin_again(self) -> None:
        """Start it again, for it failed by itself."""
        self._ray.kill(self.actor, no_restart=False)
        self._training, self._asked = self.actor.train.remote(*self._job), None
        self._heard, self._waiting_since = 0.0, monotonic()

    def kill(self) -> None:
        """End it at once."""
        self._ray.kill(self.actor, no_restart=True)

    def _ended(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0.0)[0])

    def _ask(self) -> None:
        if self._asked is None:
            self._asked = self.actor.news.options(max_task_retries=0).remote()

    def _see(self, progress: Progress) -> None:
        asked, self._asked = self._asked, None
        try:
            restarts, news = self._ray.get(asked, timeout=SILENT_SECONDS)
        except self._ray.exceptions.RayError as error:
            if self._heard:  # else it is still being started again
                self._lost(f"is gone: {death(error)}", progress)
            return
        if restarts > self.deaths:  # it died between two questions
            self._lost("is gone: its process died", progress)
        show(news, progress)
        self.said += news.said
        self.deaths, self._heard = restarts, monotonic()

    def _lost(self, why: str, progress: Progress) -> None:
        self._heard, self._waiting_since = 0.0, monotonic()
        self.deaths += 1
        if not self._restarts:
            raise MemberGoneError(f"{self.name} {why}")
        progress.note(f"{self.name} {why}; starting it again")

    def _get(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, DistrlccError):
                raise error.cause from None
            raise MemberGoneError(f"{self.name} failed: {last_line(error)}") from None
        except errors.RayActorError as error:
            raise MemberGoneError(f"{self.name} is gone: {death(error)}") from None


def death(error: Exception) -> str:
    """Return why Ray says that an actor is gone, in a few words."""
    text = " ".join(str(error).split()).lower()
    for words, reason in (
        ("node died", "its machine is gone"),
        ("node was terminated", "its machine is gone"),
        ("unavailable", "it died or cannot be reached"),
        ("ray.kill", "it was given up"),
        ("owner", "its trainer is gone"),
        ("process", "its process died"),
    ):
        if words in text:
            return reason
    return last_line(error)


def stop_seconds(*, stored: bool) -> float:
    """Return the time to save and end after a user's signal, or when the others have ended, s."""
    return _STOP_SECONDS + (_STORE_SECONDS if stored else 0.0)


def absolute_out(options: RunOptions, config: RunConfig) -> Path:
    """Return the run directory as a path that means the same in another process."""
    return (options.out or fresh_folder(Path("runs"), config.recipe)).absolute()


def command_again(topology: str, options: RunOptions, on: RayOptions) -> str:
    """Return the command that goes on with a run."""
    address = f" --address {on.address}" if on.address else ""
    rest = go_on(options.out or Path(), options.place(""))
    return f"distrlcc train --engine ray --topology {topology}{address} {rest}"


def end_run(signal: int, said: list[str], again: str) -> int:
    """Say what the members said last, and how to go on; return the exit code."""
    sys.stdout.write("".join(said))
    sys.stdout.flush()
    if not signal:
        return 0
    sys.stderr.write(f"distrlcc: stopped; saved. Go on with: {again}\n")
    return 128 + signal
