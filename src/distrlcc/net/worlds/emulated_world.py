"""N emulated links with their senders in one loop, stepped by an agent in real time.

`serve` runs an `EmulatedWorld`: `load` a scenario at each place, `act`, `turn` until the step is
over, `take` its result. A step is at least as long as asked for, and all links' steps end together
on ticks that lie one step apart. Between a step's end and the next `act` the loop goes on turning:
packets and ACKs travel, under the windows that are held.

So a slow policy shows up as the delay of its action, not as a gap in the traffic. The step that
waited for it is as long as the others, but its first part passed under the old window. If a whole
step passes before an action comes, as while a learner learns, that time belongs to no step. Its
statistics are thrown away, and the step, with new ticks, begins at the action. After the limit
`silence` without an action the senders rest, as the agent may be gone or suspended.

One loop for senders and relay keeps the kernel's buffers from overflowing: a flow's packets are
read before it sends again.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np

from distrlcc.errors import DistrlccError, LinkError
from distrlcc.limits import limits
from distrlcc.net.kernel.flow import TcpFlow
from distrlcc.net.worlds.flows import RelayLink, SendingFlow, Timers
from distrlcc.sim.scenario import Scenario
from distrlcc.types import NANOSECONDS, FloatArray, IntervalStats

_GRAIN_NS = 500_000  # between two wake-ups, ns: one costs as some packets, and serves all due
_STATS = IntervalStats.names()


@dataclass(slots=True)
class Truth:
    """The links' capacity and load in a step, and their state after it; arrays ``[N]``."""

    capacity: FloatArray  # packets that the link could carry
    used: FloatArray  # packets' worth of it that was used
    base_rtt: FloatArray  # round trip without a queue, s
    best_cwnd: FloatArray  # the oracle's window, packets


class StepResult(NamedTuple):
    """A step that is over."""

    stats: IntervalStats  # what the agents saw, ``[N]``
    truth: Truth
    action_delay: int  # how long after the step's due beginning the action came, ns
    lateness: int  # how long after its due end the step ended, ns

    @classmethod
    def of(cls, columns: FloatArray, action_delay: int, lateness: int) -> "StepResult":
        """Build it from the rows of `IntervalStats` and `Truth`, ``[rows, N]``."""
        count = len(_STATS)
        return cls(IntervalStats(*columns[:count]), Truth(*columns[count:]), action_delay, lateness)


class Place:
    """A link and its flows."""

    def __init__(self, scenario: Scenario, timers: Timers, agent: TcpFlow | None = None) -> None:
        """Open the flows' sockets; ``agent`` is the first flow where it is no `SendingFlow`."""
        self.relay = RelayLink(scenario, timers, agent)
        seed = scenario.seed * 64
        self.flows: list[TcpFlow | SendingFlow] = [*filter(None, [agent])]
        for far in self.relay.relayed:
            flow, own = scenario.flows[far.number], seed + far.number
            rtt = partial(self.relay.link.handshake, far.number)
            near = SendingFlow(flow, far.session, far.socket.address, timers, seed=own, rtt=rtt)
            self.flows.append(near)
        self.begun = False
        self._since = 0  # when its present step began, ns of the link's time
        self._used = 0.0

    def begin(self, now: int) -> None:
        """Begin the scenario's time."""
        self.begun = True
        self.relay.begin(now=now)
        for flow in self.flows:
            flow.begin(now=now)

    def hold(self, cwnd: float, pacing: float, now: int) -> None:
        """Set the agent's window and pacing rate, and end a silence."""
        self.flows[0].hold(cwnd, pacing, now=now)
        for flow in self.flows:
            flow.wake(now=now)

    def take(self, now: int, step: int) -> list[float]:
        """End a step; return the fields of `IntervalStats` and `Truth`."""
        self.relay.advance(now)
        link, time, since = self.relay.link, now - self.relay.origin, self._since
        used = link.used(now=time)
        seen = self.flows[0].take_interval(now=now)
        seen[0] = (time - since) / NANOSECONDS
        carried = [link.offered(since, time), used - self._used]
        self._since, self._used = time, used
        return [*seen, *carried, link.base_rtt(now=time), link.best_window(step, now=time)]

    def readers(self) -> Iterator[tuple[int, Callable[[int], None]]]:
        """Yield the sockets' descriptors, each with what reads it."""
        for flow in self.flows:
            yield flow.socket.fileno(), flow.receive
        for far in self.relay.relayed:
            yield far.socket.fileno(), partial(self.relay.receive, far)

    def close(self) -> None:
        """Close the sockets."""
        for flow in self.flows:
            flow.close()
        self.relay.close()


class EmulatedWorld:
    """N links, each with its scenario's flows; the first flow of each is the agent's."""

    def __init__(self, n: int) -> None:
        self._stepping = False
        self._places: list[Place | None] = [None] * n
        self._timers = Timers()
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[int], None]] = {}
        self._due = 0  # when the present or newest step ends
        self._step = self._ended = self._delay = 0
        self._acted = self._woken = monotonic_ns()

    def close(self) -> None:
        """Close every socket."""
        for n in range(len(self._places)):
            self._unload(n)
        self._poll.close()

    def watch(self, descriptor: int, reader: Callable[[int], None]) -> None:
        """Call back with the time, ns, when a descriptor is readable."""
        self._readers[descriptor] = reader
        self._poll.register(descriptor, select.EPOLLIN)

    def load(self, n: int, scenario: Scenario) -> None:
        """Put a scenario at place n, for the next `act`; raises LinkError and TraceError."""
        self._unload(n)
        place = self._places[n] = self._open(n, scenario)
        for descriptor, reader in place.readers():
            self.watch(descriptor, reader)

    def act(self, cwnd: FloatArray, pacing: FloatArray, *, step: int) -> None:
        """Begin a step of ``step`` ns with the agents' windows and pacing rates, ``[N]``."""
        now = self._acted = monotonic_ns()
        self._delay = now - self._due if self._due else 0
        if not self._due or self._delay >= step:
            self._due = now
            for place in self._places:
                if place is not None and place.begun:
                    place.take(now, step)  # no action came for a whole step
        self._due, self._step, self._stepping = self._due + step, step, True
        for n, place in enumerate(self._places):
            assert place is not None, f"nothing is loaded at place {n}"
            place.hold(float(cwnd[n]), float(pacing[n]), now)
            if not place.begun:
                place.begin(now)

    def turn(self) -> bool:
        """Do what is due and wait; return whether a step is over: then call `take` and `act`."""
        ready = self._poll.poll(0)
        now = monotonic_ns()
        for descriptor, _ in ready:
            reader = self._readers.get(descriptor)  # one reader may have closed another's socket
            if reader is not None:
                reader(now)
        now = monotonic_ns()
        if self._stepping and now >= self._due:
            self._stepping, self._ended = False, now
            return True
        if now - self._acted > limits().silence * NANOSECONDS:
            for flow in (flow for place in self._places if place for flow in place.flows):
                flow.silent = True
        self._timers.run(now=now)
        if not ready:
            until = max(self._timers.next_time(), self._woken + _GRAIN_NS)
            until = min(until, self._due) if self._stepping else until
            wait = min((until - monotonic_ns()) / NANOSECONDS, limits().tick)
            if wait > 0:
                select.select([self._poll], [], [], wait)
            self._woken = monotonic_ns()
        return False

    def take(self) -> tuple[FloatArray, int, int]:
        """Return what the step that is over showed, as `StepResult.of` takes it."""
        rows = [place.take(self._ended, self._step) for place in self._places if place is not None]
        return np.ascontiguousarray(np.array(rows).T), self._delay, self._ended - self._due

    def _unload(self, n: int) -> None:
        place, self._places[n] = self._places[n], None
        if place is None:
            return
        for descriptor, _ in place.readers():
            del self._readers[descriptor]
            self._poll.unregister(descriptor)
        place.close()

    def _open(self, n: int, scenario: Scenario) -> Place:
        return Place(scenario, self._timers)


class WorldProcess:
    """An `EmulatedWorld` in a process of its own, so that a policy that computes does not delay it.

    The process is started afresh (its owner may have threads) and ends with its owner. It ignores a
    terminal's signals, since its owner may yet finish its work. Use from one thread at a time.
    """

    def __init__(self, n: int, module: str = __name__) -> None:
        """Start the process of ``n`` links; ``module`` calls `main` with a kind of world."""
        self._connection, child = Pipe()
        command = [sys.executable, "-m", module, str(child.fileno()), str(n)]
        with child:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[child.fileno()]
            )
        self._end = weakref.finalize(self, _end, self._connection, self._process)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._end()

    def load(self, n: int, scenario: Scenario) -> None:
        """See `EmulatedWorld.load`; what goes wrong is raised by the next `step`."""
        self._send(("load", n, scenario))

    def step(self, cwnd: FloatArray, pacing: FloatArray, *, step: int) -> StepResult:
        """Act, and return when the step is over; raises LinkError and TraceError."""
        self._send(("step", np.array(cwnd), np.array(pacing), step))
        patience = limits().start  # the first step waits for the process
        try:
            if not self._connection.poll(patience + step / NANOSECONDS):
                raise LinkError(
                    f"the emulated links gave no answer for {patience:.0f} s; the machine is "
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
        except OSError:
            raise self._gone() from None

    def _gone(self) -> LinkError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(limits().kill)
        code = self._process.returncode
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        return LinkError(
            f"the process of the emulated links has ended ({how}); its message stands above, "
            "start again"
        )


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    try:
        process.wait(limits().kill)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(connection: Connection, world: EmulatedWorld) -> None:
    """Run the process: turn until the owner is gone."""
    # What the owner sends is read as the world turns.
    parent, running = os.getppid(), True
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
            failure = failure or error
            if kind != "load":
                connection.send(failure)

    world.watch(connection.fileno(), read)
    # The owner's death closes the connection, unless a process that it forked still holds it.
    while running and os.getppid() == parent:
        try:
            news: Any = world.take() if world.turn() else None
        except DistrlccError as error:  # of a flow that begins late
            news = failure = failure or error
        if news is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.send(news)
    world.close()


def main(world: type[EmulatedWorld]) -> None:
    """Be a `WorldProcess` with a world of a kind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])), world(int(sys.argv[2])))


if __name__ == "__main__":
    main(EmulatedWorld)
