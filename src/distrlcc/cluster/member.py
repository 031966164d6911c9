"""A run on Ray as the process that started it sees it: actors that train, watched until they end.

Ray starts an actor that died again, and runs its task again; what does not answer is killed here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from distrlcc.cluster.nodes import death, last_line
from distrlcc.cluster.placement import Reservation, reserve
from distrlcc.cluster.session import RayOptions, ray_session, require_ray
from distrlcc.errors import DistrlccError, GroupError
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import News, Progress, RemoteProgress, show
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory, fresh_folder
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on

_SILENT_SECONDS = 20.0
"""A member that answers nothing for this long is killed, s."""
_BEGIN_SECONDS = 120.0
"""Time until a process begins, s: the death of a machine is certain after some 20 s."""
_STOP_SECONDS, _STORE_SECONDS = 30.0, 60.0
"""Time to save and end after a user's signal or the end of another member, and to store, s."""
_TICK = 0.2
_THREADS = 4
DEATHS = 5
"""Deaths of an elastic member without an update between that do not yet end the run."""


class MemberGoneError(GroupError):
    """The actor is gone for good; the message says how."""


class Trains:
    """What an actor that trains in one thread answers in others."""

    def __init__(self) -> None:
        """Do nothing yet."""
        ray = require_ray()
        self.feed, self.stopper = RemoteProgress(), Stopper(launched=True)
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
        self, name: str, kind: type[Trains], room: dict[str, Any], job: tuple[Any, ...], lives: int
    ) -> None:
        """Have the actor made and train, called with the job; it begins when there is room.

        ``lives`` is how often it may be started again.
        """
        self._ray = require_ray()
        self.name, self.lives, self._job = name, lives, job
        self.most_lives = lives
        again = -1 if lives else 0
        options = {"max_concurrency": _THREADS, "max_restarts": again, "max_task_retries": again}
        self._actor = self._ray.remote(kind).options(**options, **room).remote()
        self._deaths = 0
        self._stopped = False
        self._begin()

    def _begin(self) -> None:
        self._training = self._actor.train.remote(*self._job)
        self._asked: Any = None
        self._heard, self._waiting_since = 0.0, monotonic()
        self.said: list[str] = []

    @property
    def waiting_seconds(self) -> float:
        """Time for which it has not begun, or begun again, s."""
        return 0.0 if self._heard else monotonic() - self._waiting_since

    def stop(self, number: int) -> None:
        """Ask it once to save and end."""
        if not self._stopped:
            self._stopped = True
            self._actor.stop.remote(number)

    def kill(self) -> None:
        """End it at once."""
        self._ray.kill(self._actor, no_restart=True)

    def begin_again(self, error: GroupError, progress: Progress) -> None:
        """Start it again after an error.

        Raises:
            MemberGoneError: That happened too often.
        """
        self._lose(f"failed: {error}", progress)
        self._ray.kill(self._actor, no_restart=False)
        self._begin()

    def poll(self, progress: Progress) -> int | None:
        """Show its news; return what training returned, None while it goes on.

        Raises:
            MemberGoneError: It died, or has been silent for too long, and is not started again.
            DistrlccError: What training raised.
        """
        ended = self._has(self._training)
        self._ask()
        if ended or self._has(self._asked):
            self._show(progress)
        if ended:
            self._ask()
            self._show(progress)  # what it said last
            return self._result()
        if self._heard and monotonic() - self._heard > _SILENT_SECONDS:
            self._lose(f"has not answered for {_SILENT_SECONDS:.0f} s", progress)
            self._ray.kill(self._actor, no_restart=False)
            self._asked = None
        return None

    def _has(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0.0)[0])

    def _ask(self) -> None:
        if self._asked is None:
            self._asked = self._actor.news.options(max_task_retries=0).remote()

    def _show(self, progress: Progress) -> None:
        asked, self._asked = self._asked, None
        try:
            restarts, news = self._ray.get(asked, timeout=_SILENT_SECONDS)
        except self._ray.exceptions.RayError as error:
            if self._heard:  # else it is still being started again
                self._lose(f"is gone: {death(error)}", progress)
            return
        if restarts > self._deaths:  # it died between two questions
            self._lose("is gone: its process died", progress)
        show(news, progress)
        self.said += news.said
        self._deaths, self._heard = restarts, monotonic()

    def _lose(self, why: str, progress: Progress) -> None:
        self._heard, self._waiting_since = 0.0, monotonic()
        self._deaths += 1
        if not self.lives:
            often = f" ({self._deaths} deaths)" if self._deaths > 1 else ""
            raise MemberGoneError(f"{self.name} {why}{often}")
        self.lives -= 1
        progress.note(f"{self.name} {why}; starting it again")

    def _result(self) -> int:
        errors = self._ray.exceptions
        try:
            return int(self._ray.get(self._training))
        except errors.RayTaskError as error:
            if isinstance(error.cause, DistrlccError):
                raise error.cause from None
            raise MemberGoneError(f"{self.name} failed: {last_line(error)}") from None
        except errors.RayActorError as error:
            raise MemberGoneError(f"{self.name} is gone: {death(error)}") from None


@dataclass
class Driver:
    """A run's members, and what the user sees and says."""

    here: str
    """Address of this machine."""
    room: Reservation
    directory: RunDirectory | None
    progress: Progress
    stopper: Stopper
    again: str
    """The command that goes on with the run."""
    stop_seconds: float
    members: list[Member] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    """What members returned; from the first one on all are to end."""
    _said: list[str] = field(default_factory=list)
    _why: str = ""
    _ending_since: float = 0.0

    def kill(self) -> None:
        """End all members at once."""
        while self.members:
            self.members.pop().kill()

    def watch(self, planned: int = 1, update: Callable[[], int] | None = None) -> None:
        """Watch the members until the first ones have ended.

        Args:
            planned: How many of the members the run needs; others wait for room.
            update: Returns the run's last update, -1 before the first, if its members are equal: a
                run of several goes on when one is left out or is started again.

        Raises:
            MemberGoneError: The run fails with one.
            DistrlccError: What one raised, if that ends the run.
        """
        first, latest = self.members[:planned], -1
        while any(member in self.members for member in first):
            for member in list(self.members):
                if self._has_ended(member, equal=update is not None, begun=latest >= 0):
                    member.kill()
                    self.members.remove(member)
            # An update between makes deaths forgotten.
            if update is not None and (now := update()) > latest:
                latest = now
                for member in self.members:
                    member.lives = member.most_lives
            if not self._in_time(first[0].name):
                break
            sleep(_TICK)
        if not self.results:
            raise MemberGoneError(self._why or f"{first[0].name} did not end in time")

    def _has_ended(self, member: Member, *, equal: bool, begun: bool) -> bool:
        try:
            result = member.poll(self.progress)
        except GroupError as error:
            # A run fails with its only member, or before its first update.
            failed = isinstance(error, MemberGoneError) or (error.exit_code == 2 and not begun)
            if not equal or (failed and not self._ending_since):
                raise
            self._why = str(error)
            if self._ending_since:
                return True
            if error.exit_code == 2:  # it alone does not fit
                self.progress.note(f"left out: {member.name}: {error}")
                return True
            if error.exit_code != GroupError.exit_code:
                raise
            member.begin_again(error, self.progress)
            return False
        if result is None:
            return False
        self.results.append(result)
        self._said += member.said
        return True

    def _in_time(self, name: str) -> bool:
        """Let all end at a user's signal, or when one has ended; say whether there is time left."""
        waiting = min((member.waiting_seconds for member in self.members), default=0.0)
        signal = self.stopper.signal
        if not (signal or self.results):
            if waiting > _BEGIN_SECONDS:
                raise MemberGoneError(
                    f"no machine of the cluster starts {name} within {_BEGIN_SECONDS:.0f} s"
                )
            return True
        if waiting and not self.results:
            raise GroupError(f"stopped before {name} had begun", exit_code=128 + signal)
        self._ending_since = self._ending_since or monotonic()
        for member in self.members:
            member.lives = member.most_lives = 0
            if signal:
                member.stop(signal)
        return monotonic() - self._ending_since < self.stop_seconds

    def end(self) -> int:
        """Say what the members said last, and how to go on; return the exit code."""
        sys.stdout.write("".join(self._said))
        sys.stdout.flush()
        signal = max(self.results)
        if not signal:
            return 0
        sys.stderr.write(f"distrlcc: stopped; saved. Go on with: {self.again}\n")
        return 128 + signal


def absolute_out(options: RunOptions, config: RunConfig) -> RunOptions:
    """Return options with a run directory whose path means the same in another process."""
    return replace(
        options, out=(options.out or fresh_folder(Path("runs"), config.recipe)).absolute()
    )


@contextmanager
def drive(
    config: RunConfig,
    options: RunOptions,
    on: RayOptions,
    topology: str,
    *,
    learners: int,
    workers: int = 0,
    anywhere: bool = False,
    directory: AbstractContextManager[RunDirectory] | None = None,
    hint: str = "",
) -> Iterator[Driver]:
    """Connect to Ray, reserve room, show progress and hear signals; kill the members at the end.

    The first learner is on this machine unless it may be ``anywhere``; ``directory`` is opened once
    there is room; ``hint`` says what helps a run that fails by itself.

    Raises:
        DistrlccError: What does not fit, or what ended the run.
    """
    address = f" --address {on.address}" if on.address else ""
    rest = go_on(options.out or Path(), options.place(""))
    again = f"distrlcc train --engine ray --topology {topology}{address} {rest}"
    seconds = _STOP_SECONDS + (_STORE_SECONDS if options.storage else 0.0)
    with ray_session(on) as ray:
        here = ray.util.get_node_ip_address()
        at = "" if anywhere else here
        with (
            reserve(config.resources, learners=learners, workers=workers, at=at) as room,
            directory or nullcontext() as opened,
            Progress(config.total_steps, max_seconds=config.max_seconds) as progress,
            Stopper() as stopper,  # until here a signal ends us at once
        ):
            driver = Driver(here, room, opened, progress, stopper, again, seconds)
            try:
                yield driver
            except MemberGoneError as error:
                told = f"{error}; go on from its last checkpoint with: {again}"
                raise GroupError(told if stopper.signal else told + hint) from None
            finally:
                driver.kill()
