"""Starts a machine's processes, watches them, and ends them with itself.

Each calls ``target(spec, job)`` and sends back what it returns. If the run is elastic, the others
go on without one that dies; else all end. Some or all may be started again.
"""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, cast

from distrlcc.errors import LEFT_OUT, DistrlccError, GroupError, warn_in_lines
from distrlcc.limits import limits, wait_until
from distrlcc.parallel.admission import own_token
from distrlcc.parallel.gate import Tunnel
from distrlcc.parallel.interface import resolve
from distrlcc.parallel.store import Master, RunWatch, open_tunnel, wait_for_attempt
from distrlcc.plugins import blame
from distrlcc.processes import LAUNCHER, RANK_ENVIRONMENT, die_with_parent
from distrlcc.runs.options import RankSpec, Watch
from distrlcc.runs.stopper import SIGNALS, Stopper
from distrlcc.storage import say

Target = Callable[[RankSpec, Any], Any]

_LOST = 255  # what multiprocessing gives as a process's exit code when its fork server died
_LONGEST_FOLDER = 72
"""Characters of TMPDIR that leave room for the names of sockets, which have 107 in all."""


@dataclass
class _Child:
    spec: RankSpec
    process: Any
    connection: Connection
    sent: tuple[str, Any] = ("nothing", None)


@dataclass
class Outcome:
    """How a run ended here."""

    code: int = 0
    results: dict[int, Any] = field(default_factory=dict)
    """Results of processes that ended well, by slot."""


class Launcher:
    """Runs the processes of one machine."""

    def __init__(
        self,
        target: Target,
        job: Any,
        specs: list[RankSpec],
        *,
        restarts: int = 0,
        invitation: str = "",
        watch: Watch = lambda stopper: None,
    ) -> None:
        """Take what to run: ``target(spec, job)`` for each of this machine's specs.

        With slot 0 this is node 0, which has the master; port 0 takes any. A process that is
        started again, at most ``restarts`` of them, gets the job with ``resume`` set. The first
        that ends well ends the run, except for a worker if there are learners. The ``invitation``
        is said once others can join.
        """
        self._target, self._job, self._specs = target, job, specs
        self._hosts, self._restarts, self._led = specs[0].slot == 0, restarts, specs[0].learners
        self._invitation, self._look = invitation, watch
        # A fork server imports once what all of them need: that is seconds, and memory, for each.
        _short_folder()
        self._context = multiprocessing.get_context("forkserver")
        # First what must know the launcher.
        needed = ["distrlcc.parallel.fork_server", "distrlcc.runs.train", target.__module__]
        self._context.set_forkserver_preload(needed)
        self._children: list[_Child] = []
        self._outcome = Outcome()
        self._ended = 0.0  # when the run was over or failed
        self._asked = 0.0  # when a user's signal came
        self._master: Master | None = None
        self._tunnel: Tunnel | None = None
        self._reasons = set[str]()
        """Why processes have gone; several may give up for the same reason."""

    def run(self) -> Outcome:
        """Run until all processes have ended; none is left. Raises the first failed one's error."""
        with ExitStack() as stack:
            # Serve the master, or find it and the attempt that its run is at.
            first = self._specs[0]
            if self._hosts:
                # Equals agree at a lighthouse.
                where = first.address, first.port
                self._master = Master(*where, lighthouse=self._led != 1, token=own_token())
                stack.callback(self._master.close)
                self._tunnel = self._master.tunnel
                sys.stdout.write(self._invitation)
                sys.stdout.flush()
            else:
                self._tunnel = open_tunnel(first, own_token())
                if self._tunnel is not None:
                    stack.callback(self._tunnel.close)
            self._begin(0)
            if not self._hosts:
                count = len(self._specs)
                say(
                    f"found the master at {first.address}:{first.port}; starting {count} "
                    f"process{'es' if count > 1 else ''}, news are shown on node 0"
                )
            stack.callback(self._kill)
            stopper = stack.enter_context(Stopper())  # until here a signal ends us at once
            failure = self._watch(stopper)
            if self._hosts and self._led and first.size > len(self._specs):
                time.sleep(limits().kill)  # the other machines hear how it ended
            # A group that cannot go on without its dead starts again as a whole.
            while (
                failure is not None
                and failure.exit_code == GroupError.exit_code
                and not first.elastic
                and self._restarts > 0
                and not stopper.signal
                and not (self._tunnel is not None and self._tunnel.ended)
            ):
                say(f"{failure}; starting all again from the last checkpoint")
                self._restarts -= 1
                self._kill()
                self._job = replace(self._job, resume=True)
                self._begin(self._specs[0].attempt + 1)
                failure = self._watch(stopper)
            # Report how it ended.
            if failure is not None and (_own_fault(failure) or not stopper.signal):
                raise failure
            if stopper.signal:
                self._outcome.code = 128 + stopper.signal
            elif not self._hosts:
                say("the run is over; node 0 has its results")
            return self._outcome

    def _begin(self, attempt: int) -> None:
        """Let the members of an attempt join, or wait until it or a later one has begun."""
        if self._tunnel is not None:
            where, gate = resolve(self._specs[0].address), self._tunnel.name
            self._specs = [replace(spec, address=where, gate=gate) for spec in self._specs]
        first = self._specs[0]
        if self._master is not None:
            self._master.begin(attempt)
            first = replace(first, port=self._master.port)
        else:
            attempt = wait_for_attempt(first, attempt)
        self._specs = [replace(s, port=first.port, attempt=attempt) for s in self._specs]

    def _watch(self, stopper: Stopper) -> DistrlccError | None:
        """Start all and watch until they have ended; return why they failed, if they did."""
        # Start all.
        self._children, self._ended, self._asked = [], 0.0, 0.0
        for spec in self._specs:
            self._start(spec, self._job)
        failure: DistrlccError | None = None
        spec = self._specs[0]
        with RunWatch(spec, bound=self._led > 0) as run:
            # Judge those that have ended, until all have.
            while self._children:
                wait([child.process.sentinel for child in self._children], limits().tick)
                for child in list(self._children):
                    ended = child.process.exitcode is not None
                    with suppress(EOFError, OSError):
                        if child.connection.poll():  # a large result keeps it waiting
                            child.sent = child.connection.recv()
                    if ended:
                        self._children.remove(child)
                        found = self._judge(child, stopper, run)
                        failure = failure or found
                if self._tunnel is not None and self._tunnel.ended and not self._ended:
                    failure = failure or GroupError(self._tunnel.ended)
                    self._ended = time.monotonic()
                    self._signal(signal.SIGKILL)
                self._look(stopper)
                self._end_in_time(stopper, run)
            if run.lost and not stopper.signal:
                failure = failure or GroupError(
                    f"the master at {spec.address}:{spec.port} is gone: node 0 died"
                )
            # Node 0 serves the other machines' ranks without any of its own.
            others_go_on = self._hosts and spec.elastic and spec.size > len(self._specs)
            if failure is not None and others_go_on and not (self._ended or self._asked):
                say(f"{failure}; none is left here; it serves the others while they live")
                cast(Any, util)._run_finalizers(-100)  # its fork server's folder
                while not (run.over.wait(limits().tick) or stopper.signal):
                    if time.monotonic() - run.heard > limits().absence:
                        silence = f"no other machine has been heard for {limits().absence:.0f} s"
                        return GroupError(f"{failure}; {silence}")
                return None
        return failure

    def _end_in_time(self, stopper: Stopper, run: RunWatch) -> None:
        """Pass a user's signal on, and kill processes that outlive the run."""
        now = time.monotonic()
        if stopper.signal and not self._asked:
            self._asked = now
            self._signal(signal.SIGTERM)
        if run.over.is_set() and not (self._hosts and self._led == 1):
            self._ended = self._ended or now
        # Workers have nothing to save. After a signal the update is finished first.
        saves = not self._led or any(child.spec.slot < self._led for child in self._children)
        limit = limits().stop if saves else limits().kill
        late = self._ended and now - self._ended > limit
        if late or (self._asked and now - self._asked > limits().patience):
            self._kill()

    def _judge(self, child: _Child, stopper: Stopper, run: RunWatch) -> DistrlccError | None:
        """Return why this exit fails the run, or None."""
        spec, code, (kind, sent) = child.spec, child.process.exitcode, child.sent
        # It returned: the run is over with it, unless others here learn.
        learns, only = spec.slot < self._led, self._led == 1 and self._hosts
        if kind == "result":
            self._outcome.results[spec.slot] = sent
            ended_well = not isinstance(sent, int) or sent == 0
            vital = learns or not any(own.slot < self._led for own in self._specs)
            if vital and (ended_well or only):
                self._ended = self._ended or time.monotonic()
            return None
        # Else find why it failed, and whether the same would happen again.
        if kind == "error":
            failure: DistrlccError = GroupError(sent[1], exit_code=sent[0])
        else:
            name = f"rank {spec.slot}"
            if self._led:
                name = f"learner {spec.slot}" if learns else f"worker {spec.slot - self._led}"
                name = "the trainer" if learns and self._led == 1 else name
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "crashed"
            failure = GroupError(f"{name} (process {child.process.pid}) {how}")
            if code == _LOST and (told := _death_of_server()):
                # Those that are left have died with it, too.
                failure = GroupError(told)
                if spec.elastic and not stopper.signal:
                    return None if self._children else failure
        left_out, own_fault = failure.exit_code == LEFT_OUT, _own_fault(failure)
        # At the end of a run only an error of its own counts.
        if not own_fault and (stopper.signal or self._ended):
            return None
        if own_fault or not spec.elastic:
            self._ended = time.monotonic()
            self._signal(signal.SIGTERM if own_fault else signal.SIGKILL)
            return failure
        # Else the others go on, with it again or without; where the master is gone it cannot join.
        silent = 0.0 if self._hosts else time.monotonic() - run.answered
        if self._restarts > 0 and not left_out and silent < limits().absence / 2:
            self._restarts -= 1
            say(f"{failure}; starting it again")
            # Should it find itself alone, it goes on from the last checkpoint.
            self._start(spec, replace(self._job, resume=True))
            return None
        if not self._children:
            return failure
        if str(failure) not in self._reasons:
            self._reasons.add(str(failure))
            say(f"{failure}; {len(self._children)} left on this machine")
        return None

    def _start(self, spec: RankSpec, job: Any) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_main,
            args=(sender, self._target, spec, job, RANK_ENVIRONMENT | dict(os.environ)),
            name=f"rank {spec.slot}",
        )
        # A signal to all processes must end neither the fork server, with which the ranks would
        # die, nor a process that still imports: both begin with it held back.
        resource_tracker.ensure_running()  # first, as it lets signals through when it starts
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        added = {LAUNCHER: str(os.getpid())}
        added |= {k: v for k, v in RANK_ENVIRONMENT.items() if k not in os.environ}
        os.environ.update(added)
        # A child would run the user's script again, which a notebook or a pipe does not even have.
        main = sys.modules["__main__"]
        if self._target.__module__ != "__main__":
            sys.modules["__main__"] = ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
            for name in added:
                del os.environ[name]
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sender.close()
        self._children.append(_Child(spec, process, receiver))

    def _signal(self, number: int) -> None:
        for child in self._children:
            if child.process.is_alive():
                # The fork server, whose child it is, may see its end before we do.
                with suppress(ProcessLookupError):
                    os.kill(child.process.pid, number)

    def _kill(self) -> None:
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.join(limits().stop)


def _own_fault(failure: DistrlccError) -> bool:
    """Return whether a retry would fail alike, so that the run must end."""
    return failure.exit_code not in (GroupError.exit_code, LEFT_OUT)


def _death_of_server() -> str:
    """Return how the fork server, whose processes die with it, was killed; empty if it lives."""
    server: Any = forkserver._forkserver
    which = os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
    wait_until(lambda: os.waitid(*which), limits().kill)
    if (found := os.waitid(*which)) is None:
        return ""
    how = "crashed"
    if found.si_code != os.CLD_EXITED:
        how = f"was killed by {signal.Signals(found.si_status).name}"
    who = f"the fork server (process {found.si_pid})"
    return f"{who} {how}, and all processes of this machine with it"


def _die_with_launcher() -> None:
    """Let the system kill this process, a child of the fork server's, when its launcher dies.

    That server ends when the launcher is gone, once none of its processes holds its life line.
    """
    from distrlcc.parallel.fork_server import PID  # noqa: PLC0415 - it is for the server's forks

    launcher = multiprocessing.parent_process()
    die_with_parent(signal.SIGKILL, parent=PID)
    server: Any = forkserver._forkserver
    line, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if line is not None:
        os.close(line)
    if launcher is not None and not launcher.is_alive():
        os._exit(1)


def _short_folder() -> None:
    """Let multiprocessing's sockets be in /tmp where TMPDIR is too long for a socket's name."""
    before = tempfile.gettempdir()
    if len(before) > _LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
        try:
            util.get_temp_dir()  # is made now, and kept
        finally:
            tempfile.tempdir = before


def _main(
    sender: Connection, target: Target, spec: RankSpec, job: Any, environment: dict[str, str]
) -> None:
    """Run in a child process, in the launcher's environment and not its fork server's."""
    _die_with_launcher()
    os.environ.clear()
    os.environ.update(environment)
    gc.freeze()  # what the server imported is never garbage: no look at it, no copy of its pages
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS} - {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C and sends SIGTERM
    warn_in_lines(spec.slot)
    try:
        sender.send(("result", target(spec, job)))
    except DistrlccError as error:
        sender.send(("error", (error.exit_code, str(error))))
        sys.exit(error.exit_code)
    except BaseException as error:
        if why := blame(error):
            sender.send(("error", (2, why)))
            sys.exit(2)
        lines = traceback.format_exc().splitlines(keepends=True)
        sys.stderr.write("".join(f"rank {spec.slot}: {line}" for line in lines))
        sys.exit(1)
