"""COMMAND in a network of its own, whose only way out is an emulated link.

This process carries packets between a device in COMMAND's network and one outside. All ends with
it, however that ends: devices with their descriptors, the network with its last process, COMMAND's
processes by their guard.
"""

import errno
import gc
import random
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from distrlcc.limits import limits
from distrlcc.net.emulator.command import Guard, SignalDescriptor, kept, running_outside
from distrlcc.net.emulator.device import INNER_NAME, End, address_of, open_inner, open_outer
from distrlcc.net.emulator.direction import MILLISECOND, Direction
from distrlcc.net.emulator.link_config import LinkConfig
from distrlcc.net.emulator.link_log import LinkLog
from distrlcc.net.emulator.namespace import inside, new_network
from distrlcc.processes import heard, run_on_time, run_soon
from distrlcc.sim.link import NEVER
from distrlcc.types import NANOSECONDS

_BATCH = 64
_FLUSH_EVERY = NANOSECONDS
_FORWARDED = (signal.SIGINT, signal.SIGQUIT)
_SI_KERNEL = 0x80
_DELETED = (errno.EBADFD, errno.ENODEV)
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# States in /proc/net/tcp of connections whose FIN the other side has not acknowledged.
_UNFINISHED = {"04", "09", "0B"}


@dataclass(frozen=True)
class Job:
    """A command, and the link that it runs behind."""

    link: LinkConfig
    command: Sequence[str]
    outside: Sequence[str] | None = None  # a command that runs outside for as long as COMMAND
    logs_up: Sequence[LinkLog] = ()
    logs_down: Sequence[LinkLog] = ()
    command_line: Sequence[str] = ()  # ours, for the logs


def run_shell(job: Job, environment: Mapping[str, str]) -> tuple[int, OSError | None]:
    """Run a command behind an emulated link, with privileges; return its exit code, or why not."""
    with ExitStack() as stack:
        # Make a network for COMMAND, and the outer end where this process was.
        mark = stack.enter_context(kept())
        signals = SignalDescriptor([*_FORWARDED, *heard(_ENDING)])
        stack.callback(signals.close)
        nested = address_of(INNER_NAME) is not None
        outside = stack.enter_context(new_network())
        outer, block = open_outer(outside)
        stack.callback(outer.close)
        variables = dict(environment)
        if not (nested and "MAHIMAHI_BASE" in variables):
            variables["MAHIMAHI_BASE"] = block.outer
        # Start what runs outside, then the inner end and COMMAND.
        if job.outside is not None:
            with inside(outside):
                stack.enter_context(running_outside(job.outside, variables, signals.restore_mask))
        inner = open_inner(block)
        stack.callback(inner.close)
        session = _Session(job, inner, outer)
        guard = Guard(job.command, {**variables, mark: "1"}, signals)
        stack.callback(guard.end)
        # It gets a core as soon as a packet is due; the loop makes no cycles to collect.
        if not run_on_time():
            run_soon()
        gc.disable()
        session.run(guard, signals)
        assert guard.exit_code is not None
        return guard.exit_code, guard.start_error


Descriptor = End | Guard | SignalDescriptor


class _Session:
    """The link's life: while COMMAND runs, and until what it sent has arrived."""

    def __init__(self, job: Job, inner: End, outer: End) -> None:
        self._logs = [*job.logs_up, *job.logs_down]
        self._started = time.monotonic_ns()
        self._job = job
        seed = job.link.seed
        self._up = Direction(job.link.up, random.Random(f"{seed}/Uplink"), logs=job.logs_up)
        self._down = Direction(job.link.down, random.Random(f"{seed}/Downlink"), logs=job.logs_down)
        if job.link.waits:
            self._up.on_full = self._begin
        else:
            self._begin(self._clock() // MILLISECOND)
        self._ways = ((inner, self._up, outer), (outer, self._down, inner))
        self._ends: tuple[Descriptor, ...] = (inner, outer)
        self._ending = NEVER
        self._flushed = 0

    def _clock(self) -> int:
        return time.monotonic_ns() - self._started

    def _begin(self, base: int) -> None:
        """Let the link's time begin, ms."""
        job, self._up.on_full = self._job, None
        for name, way, config, logs in (
            ("Uplink", self._up, job.link.up, job.logs_up),
            ("Downlink", self._down, job.link.down, job.logs_down),
        ):
            for log in logs:
                log.header(name, config, command_line=job.command_line, base=base)
            way.begin(base)

    def run(self, guard: Guard, signals: SignalDescriptor) -> None:
        """Carry packets until COMMAND has ended and its connections have closed."""
        while guard.exit_code is None:
            self._turn(guard, signals)
            if self._clock() > self._ending:  # it ignores the signal: the guard kills it
                guard.exit_code = 128 + signal.SIGKILL
                return
        until = self._clock() + limits().call * NANOSECONDS
        while self._ending == NEVER and self._clock() < until and self._unfinished():
            self._turn(guard, signals)
        now = self._clock()
        for way in (self._up, self._down):
            way.advance(now=now)

    def _turn(self, guard: Guard, signals: SignalDescriptor) -> None:
        """Carry packets, take signals and COMMAND's end, until more is due; select is exact."""
        # Wait for a packet, a signal, COMMAND's end, or what the link does next.
        others: list[Descriptor] = [signals, guard] if guard.exit_code is None else [signals]
        now = self._clock()
        due = min(direction.next_time(now=now) for _, direction, _ in self._ways)
        wait = min(max(due - now, 0) / NANOSECONDS, limits().tick)
        readable, _, _ = select.select((*self._ends, *others), [], [], wait)
        # Carry packets.
        for end, direction, other in self._ways:
            if end in readable:
                self._take(end, direction)
            self._give(direction, other)
        # Take the rest.
        if signals in readable:
            for received in signals.read():
                self._pass_on(received, guard)
        if guard in readable:
            guard.read_status()
        now = self._clock()
        if now - self._flushed > _FLUSH_EVERY:
            self._flushed = now
            for log in self._logs:
                log.flush()

    def _take(self, end: End, direction: Direction) -> None:
        try:
            for _ in range(_BATCH):
                data = end.read()
                now = self._clock()
                direction.advance(now=now)
                direction.arrive(data, now=now)
        except BlockingIOError:
            pass
        except OSError as error:  # COMMAND took the device down, or has deleted it for good
            if error.errno in _DELETED:
                self._ends = tuple(other for other in self._ends if other is not end)

    def _give(self, direction: Direction, other: End) -> None:
        now = self._clock()
        direction.advance(now=now)
        for data in direction.arrivals(now=now):
            # A device that COMMAND took down loses packets, as a cable that is pulled.
            with suppress(OSError):
                other.write(data)

    def _pass_on(self, received: signal.struct_siginfo, guard: Guard) -> None:
        if received.si_signo in _ENDING:
            self._ending = min(self._ending, self._clock() + round(limits().kill * NANOSECONDS))
        if guard.exit_code is not None:
            self._ending = min(self._ending, self._clock())
        elif received.si_code != _SI_KERNEL:  # which a terminal sends to COMMAND too
            guard.send(signal.Signals(received.si_signo))

    def _unfinished(self) -> bool:
        if not (self._up.empty and self._down.empty):
            return True
        tables = [Path(f"/proc/self/net/{name}") for name in ("tcp", "tcp6")]
        lines = [line for t in tables if t.exists() for line in t.read_text().splitlines()[1:]]
        return any(line.split()[3] in _UNFINISHED for line in lines)
