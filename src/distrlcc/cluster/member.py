"""A run on Ray as the process that started it sees it: actors that train, watched until they end.

Ray starts an actor that died again, and runs its task again; a frozen one is killed here.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import Any

from distrlcc.cluster import session
from distrlcc.cluster.placement import Reservation, reserve
from distrlcc.errors import LEFT_OUT, DistrlccError, GroupError
from distrlcc.limits import limits
from distrlcc.runs.options import RunOptions
from distrlcc.runs.progress import News, Progress, RemoteProgress, show
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.run_directory import RunDirectory
from distrlcc.runs.start import open_directory, run_folder
from distrlcc.runs.stopper import Stopper
from distrlcc.runs.storage_session import go_on
from distrlcc.storage import say

_THREADS = 4
DEATHS = 5  # deaths of an elastic member without an update between that do not yet end the run


class MemberGoneError(GroupError):
    """The actor is gone for good; the message says how."""


class Trains:
    """An actor that trains in one thread, in its method ``train``, and answers in others."""

    def __init__(self) -> None:
        ray = session.require_ray()
        self.feed, self.stopper = RemoteProgress(), Stopper(launched=True)
        own = ray.get_runtime_context().get_actor_id()
        self.restarts = int(ray._private.state.actors(own)["NumRestarts"])
        """How often Ray has started this actor again."""

    def news(self) -> tuple[int, News]:
        """Return its restarts, and the lines to show."""
        return self.restarts, self.feed.news()

    def stop(self, number: int) -> None:
        """Save and end, as if this signal had come."""
        self.stopper.request(number)


class Member:
    """One actor as the driver sees it."""

    def __init__(
        self, name: str, actor: Any, job: tuple[Any, ...], lives: int, progress: Progress
    ) -> None:
        """Have it train; it begins when there is room, and again as often as it has ``lives``."""
        self._ray = session.require_ray()
        self.name, self.lives, self.most_lives = name, lives, lives
        self._actor, self._job, self._progress = actor, job, progress
        self._deaths, self._kills, self._stopped, self._looked = 0, 0, False, monotonic()
        self._begin()

    def _begin(self) -> None:
        self._training = self._actor.train.remote(*self._job)
        self.acts, self.since = False, monotonic()
        """Whether it has begun, and since when it has not, or has not answered."""
        self.said: list[str] = []
        self._asked = self._ask()

    def _ask(self) -> Any:
        return self._actor.news.options(max_task_retries=0).remote()

    def stop(self, number: int) -> None:
        """Ask it once to save and end."""
        if not self._stopped:
            self._stopped = True
            self._actor.stop.remote(number)

    def kill(self, *, restart: bool = False) -> None:
        """End its process at once."""
        self._ray.kill(self._actor, no_restart=not restart)

    def begin_again(self, error: GroupError) -> None:
        """Start it again after an error; raises MemberGoneError if that happened too often."""
        self._lose(f"failed: {error}")
        self.kill(restart=True)
        self._begin()

    def poll(self) -> int | None:
        """Show its news; return the result of training, None while it goes on.

        Raises MemberGoneError if it died or was silent for too long, and is not started again;
        DistrlccError: training raised it.
        """
        answered, _ = self._ray.wait([self._training, self._asked], num_returns=2, timeout=0.0)
        if answered:
            self._show()
        if self._training in answered:
            self._show()  # what it said last
            return self._result()
        if not self.acts and monotonic() > self._looked + limits().call:
            # One that is killed whenever it starts never says so itself.
            self._looked, kills = monotonic(), session.memory_kills(self._actor)
            if len(kills) > self._kills:
                self._kills = len(kills)
                self._lose(f"is gone: {kills[-1]}")
                self._deaths = max(self._deaths, self._kills)
        if self.acts and monotonic() - self.since > limits().stall:
            self._lose(f"has not answered for {limits().stall:.0f} s")
            self.kill(restart=True)
        return None

    def _show(self) -> None:
        try:
            restarts, news = self._ray.get(self._asked, timeout=limits().stall)
        except self._ray.exceptions.RayError as error:
            self._asked = self._ask()
            if self.acts:  # else it is still being started again
                self._lose(f"is gone: {self._death(session.death(error))}")
            return
        self._asked = self._ask()  # not before: it could take the news of the one before
        if restarts > self._deaths:  # it died between two questions
            self._lose(f"is gone: {self._death('its process died')}")
        self.said += show(news, self._progress)
        self._deaths, self.acts, self.since = restarts, True, monotonic()

    def _death(self, otherwise: str) -> str:
        why, self._kills = session.why_gone(self._actor, self._kills, otherwise)
        return why

    def _lose(self, why: str) -> None:
        self.acts, self.since = False, monotonic()
        self._deaths += 1
        if not self.lives:
            often = f" ({self._deaths} deaths)" if self._deaths > 1 else ""
            raise MemberGoneError(f"{self.name} {why}{often}")
        self.lives -= 1
        self._progress.note(f"{self.name} {why}; starting it again")

    def _result(self) -> int:
        errors = self._ray.exceptions
        try:
            return int(self._ray.get(self._training))
        except errors.RayTaskError as error:
            if isinstance(error.cause, DistrlccError):
                raise error.cause from None
            raise MemberGoneError(f"{self.name} failed: {session.last_line(error)}") from None
        except errors.RayError as error:
            raise MemberGoneError(
                f"{self.name} is gone: {self._death(session.death(error))}"
            ) from None


@dataclass
class Driver:
    """A run's members, and what the user sees and says."""

    here: str  # address of this machine
    options: RunOptions
    room: Reservation
    directory: RunDirectory | None
    progress: Progress
    stopper: Stopper
    again: str  # command that goes on with the run
    members: list[Member] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    """Results of members; from the first one on, all others are asked to end."""
    _said: list[str] = field(default_factory=list)
    _why: str = ""
    _ending_since: float = 0.0

    def start(
        self, name: str, kind: type[Trains], index: int, job: tuple[Any, ...], lives: int
    ) -> None:
        """Start a member in a learner's room, again up to ``lives`` times, on the job."""
        again = -1 if lives else 0
        options = {"max_concurrency": _THREADS, "max_restarts": again, "max_task_retries": again}
        options |= self.room.learners[index]
        actor = session.require_ray().remote(kind).options(**options).remote()
        self.members.append(Member(name, actor, job, lives, self.progress))

    def kill(self) -> None:
        """End all members at once."""
        while self.members:
            self.members.pop().kill()

    def watch(self, planned: int = 1, update: Callable[[], int] | None = None) -> None:
        """Watch the members until the first ones have ended; others than ``planned`` await room.

        ``update`` returns the run's last update (-1 before the first) if members are equal: such a
        run goes on without one, or when one starts again. Raises MemberGoneError if the run fails
        with a member; else a member's error, or GroupError if this process's own Ray died.
        """
        # Remove the members that have ended.
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
            self.options.watch(self.stopper)
            # Without Ray nothing can be started or stopped.
            if dead := session.dead_part(session.require_ray()):
                why = f"Ray is gone: its {dead} on this machine died"
                raise GroupError(f"{why}; go on from the last checkpoint with: {self.again}")
            # Stop waiting once the time to end is over.
            if not self._in_time(first[0].name):
                break
            sleep(limits().tick)
        if not self.results:
            raise MemberGoneError(self._why or f"{first[0].name} did not end in time")

    def _has_ended(self, member: Member, *, equal: bool, begun: bool) -> bool:
        try:
            result = member.poll()
        except GroupError as error:
            self._why = str(error)
            if equal and self._ending_since:
                return True
            # Equals go on without a lost one and, once they have begun, without one that is unfit.
            unfit = error.exit_code in (2, LEFT_OUT)
            lost = error.exit_code == GroupError.exit_code
            final = not equal or isinstance(error, MemberGoneError)
            if final or not (lost or (unfit and begun)):
                raise
            if unfit:
                self.progress.note(f"left out: {member.name}: {error}")
            else:
                member.begin_again(error)
            return unfit
        if result is None:
            return False
        self.results.append(result)
        self._said += member.said
        return True

    def _in_time(self, name: str) -> bool:
        """Let all end at a user's signal, or when one has ended; say whether there is time left."""
        begins = bool(self.members) and not any(member.acts for member in self.members)
        signal = self.stopper.signal
        if not (signal or self.results):
            if begins and monotonic() - max(m.since for m in self.members) > limits().start:
                raise MemberGoneError(
                    f"no machine of the cluster starts {name} within {limits().start:.0f} s"
                )
            return True
        if begins and not self.results:
            raise GroupError(f"stopped before {name} had begun", exit_code=128 + signal)
        self._ending_since = self._ending_since or monotonic()
        for member in self.members:
            member.lives = member.most_lives = 0
            if signal:
                member.stop(signal)
        stored = 3.0 if self.options.storage else 1.0
        return monotonic() - self._ending_since < stored * limits().stop

    def end(self) -> int:
        """Say what the members said last, and how to go on; return the exit code."""
        signal = max(self.results)
        if self.options.show:
            sys.stdout.write("".join(self._said))
            sys.stdout.flush()
        if self.options.show and signal:
            say(f"stopped; saved. Go on with: {self.again}")
        return 128 + signal if signal else 0


@contextmanager
def drive(
    config: RunConfig,
    options: RunOptions,
    on: str,
    topology: str,
    *,
    learners: int,
    workers: int = 0,
    run: str = "",
) -> Iterator[Driver]:
    """Connect to Ray, reserve room, show progress and hear signals; kill the members at the end.

    ``run`` is the run's id if its directory is opened here, where the first learner then is, as it
    is without a storage. Raises DistrlccError: what does not fit, or what ended the run.
    """
    # Open what the run needs, in this order, and close it in reverse.
    with session.ray_session(on) as ray, run_folder(config, options) as folder:
        # Say how to go on: the run directory has the same path in another process.
        out, limit = folder.absolute(), config.max_seconds
        options = replace(options, out=out)
        more = f" --address {on}" * bool(on) + f" --processes {learners}" * (not workers)
        rest = go_on(out, options.place(""))
        again = f"distrlcc train --engine ray --topology {topology}{more} {rest}"
        here = ray.util.get_node_ip_address()
        at = here if run or not options.storage else ""
        with (
            reserve(config.resources, learners=learners, workers=workers, at=at) as room,
            open_directory(config, options, run) if run else nullcontext() as directory,
            Progress(config.total_steps, max_seconds=limit, show=options.show) as progress,
            Stopper() as stopper,  # until here a signal ends us at once
        ):
            driver = Driver(here, options, room, directory, progress, stopper, again)
            try:
                yield driver
            except MemberGoneError as error:
                hint = "" if run or stopper.signal else "; --restarts K starts it again by itself"
                told = f"{error}; go on from its last checkpoint with: {again}{hint}"
                raise GroupError(told) from None
            finally:
                driver.kill()
