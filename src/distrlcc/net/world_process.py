"""An `EmulatedWorld` in a process of its own, so that a policy that computes does not hold it up.

The process is started afresh (not forked: whoever starts it may have threads), ends when its owner
is gone, and ignores signals that a terminal sends to all, since its owner may yet finish its work.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import DistrlccError, LinkError
from distrlcc.net.emulated_world import EmulatedWorld, StepResult
from distrlcc.sim.scenario import Scenario
from distrlcc.types import NANOSECONDS

Floats = NDArray[np.float64]

_END_SECONDS = 2.0
_STUCK_SECONDS = 60.0


class WorldProcess:
    """The owner's end; use from one thread at a time."""

    def __init__(self, n: int) -> None:
        """Start the process with N empty places."""
        own, child = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(child.fileno()), str(n)]
        with child:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[child.fileno()]
            )
        self._connection = Connection(own.detach())
        self._end = weakref.finalize(self, _end, self._connection, self._process)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._end()

    def load(self, n: int, scenario: Scenario) -> None:
        """See `EmulatedWorld.load`; what goes wrong is raised by the next `step`."""
        self._send(("load", n, scenario))

    def step(self, cwnd: Floats, pacing: Floats, *, step: int) -> StepResult:
        """Act, and wait until the step is over; see `EmulatedWorld.act`.

        Raises:
            LinkError: The process has ended, or there are no more sockets.
            TraceError: A trace cannot be read.
        """
        self._send(("step", np.array(cwnd), np.array(pacing), step))
        try:
            if not self._connection.poll(_STUCK_SECONDS + step / NANOSECONDS):
                raise LinkError(
                    f"the emulated links gave no answer for {_STUCK_SECONDS:.0f} s; the machine is "
                    "overloaded: train on fewer or slower links"
                )
            result = self._connection.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(result, DistrlccError):
            raise result
        return StepResult.of(*result)

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError, OSError):
            raise self._gone() from None

    def _gone(self) -> LinkError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        code = self._process.returncode
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        return LinkError(
            f"the process of the emulated links has ended ({how}); what it said stands above, "
            "start again"
        )


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(connection: Connection, n: int) -> None:
    """Be the process: turn until the owner is gone."""
    parent, running = os.getppid(), True
    world = EmulatedWorld(n)
    failure: DistrlccError | None = None

    def read(_: int) -> None:
        nonlocal running, failure
        try:
            kind, *rest = connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            running = False
            return
        try:
            if kind == "load":
                world.load(*rest)
            elif failure is None:
                cwnd, pacing, step = rest
                world.act(cwnd, pacing, step=step)
            else:
                connection.send(failure)
        except DistrlccError as error:
            failure = error

    world.watch(connection.fileno(), read)
    # The owner's death closes the connection, unless a process that it forked still holds it.
    while running and os.getppid() == parent:
        if world.turn():
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.send(world.take())
    world.close()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
