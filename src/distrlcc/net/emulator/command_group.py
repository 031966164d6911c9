"""Runs several commands at once; the senders among them begin at start times of one clock.

python -m distrlcc.net.emulator.command_group PARTS.json

Each command has a process of its own. A sender takes seconds to be ready: it imports, connects,
loads a policy. So it calls `wait_for_start`, which prints ``ready`` and reads a line, the start
time in s of the machine's monotonic clock, or nothing for now. The group names the start times once
all senders are ready. When one command fails the others end; all end with this process.
"""

import math
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec

from distrlcc.errors import LinkError
from distrlcc.limits import limits
from distrlcc.processes import die_with_parent

BASE = "$MAHIMAHI_BASE"  # stands in a command for the variable's value
_READY = "ready"
_LEAD_SECONDS = 0.1  # from naming the start times to the first of them
_LONGEST_LINE = 100
_LONGEST_SECONDS = 86_400.0
ERROR = "error: "  # before the reason, in the line that a command of ours ends with


def wait_for_start(
    out: TextIO, *, source: int = 0, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Write that all is ready, and return at the start time that is named; or raise LinkError."""
    out.write(f"{_READY}\n")
    out.flush()
    line = _read_line(source, stopping).strip()
    start_time = math.nan
    with suppress(ValueError):
        start_time = float(line or 0.0)
    if not -math.inf < start_time < time.monotonic() + _LONGEST_SECONDS:
        raise LinkError(
            f"{line[:_LONGEST_LINE]!r} is not a start time; expected s of the monotonic clock, at "
            "most a day ahead, or nothing"
        )
    while (left := start_time - time.monotonic()) > 0:
        if stopping():
            raise LinkError("stopped before the start time")
        time.sleep(min(left, limits().tick))


def _read_line(source: int, stopping: Callable[[], bool]) -> str:
    patience, line = limits().patience, b""
    deadline = time.monotonic() + patience
    while b"\n" not in line and len(line) < _LONGEST_LINE:
        if stopping():
            raise LinkError("stopped before a start time was named")
        if time.monotonic() > deadline:
            raise LinkError(f"no start time was named within {patience:.0f} s")
        if select.select([source], [], [], limits().tick)[0]:
            data = os.read(source, _LONGEST_LINE)
            if not data:
                raise LinkError("standard input ended before it named a start time")
            line += data
    return line.partition(b"\n")[0].decode(errors="replace")


@dataclass(frozen=True)
class Part:
    """A command."""

    name: str  # in messages
    words: tuple[str, ...]
    start_s: float | None = None  # s after the first start time; None: at once, without a wait


@dataclass
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    ready: bool
    unfinished: bytes = b""  # of a line
    errors: list[str] = field(default_factory=list)

    def read(self, data: bytes) -> None:
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            self.ready = self.ready or text == _READY
            if ERROR in text:
                self.errors.append(text.partition(ERROR)[2])


def run_group(parts: Sequence[Part]) -> None:
    """Run commands until all have ended; raises LinkError if one fails or is not ready in time."""
    with ExitStack() as stack:
        # Start all of them.
        selector = stack.enter_context(selectors.DefaultSelector())
        running = [stack.enter_context(_started(part)) for part in parts]
        for one in running:
            assert one.process.stdout is not None
            selector.register(one.process.stdout, selectors.EVENT_READ, one)
        # Wait until every sender is ready.
        patience = limits().start
        deadline = time.monotonic() + patience
        while waiting := [one.part.name for one in running if not one.ready]:
            if time.monotonic() > deadline:
                late = ", ".join(waiting)
                raise LinkError(f"{late}: not ready to send within {patience:.0f} s")
            _read_output(selector, max(deadline - time.monotonic(), 0.0))
        # Name the start times, and wait until all have ended.
        begin = time.monotonic() + _LEAD_SECONDS
        for one in running:
            if one.part.start_s is not None:
                assert one.process.stdin is not None
                with suppress(BrokenPipeError):  # `_read_output` finds out how it ended
                    one.process.stdin.write(f"{begin + one.part.start_s!r}\n".encode())
        deadline = begin + _LONGEST_SECONDS
        while selector.get_map():
            if time.monotonic() > deadline:
                raise LinkError(f"not all ended within {_LONGEST_SECONDS:.0f} s")
            _read_output(selector, max(deadline - time.monotonic(), 0.0))


@contextmanager
def _started(part: Part) -> Iterator[_Running]:
    base, pipe = os.environ.get(BASE[1:], ""), subprocess.PIPE
    words = [word.replace(BASE, base) for word in part.words]
    ends = partial(die_with_parent, signal.SIGKILL)
    with subprocess.Popen(
        words, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, preexec_fn=ends
    ) as process:
        try:
            yield _Running(part, process, part.start_s is None)
        finally:
            process.kill()


def _read_output(selector: selectors.BaseSelector, seconds: float) -> None:
    for key, _ in selector.select(seconds):
        one: _Running = key.data
        data = os.read(key.fd, 1 << 16)
        if data:
            one.read(data)
            continue
        selector.unregister(key.fileobj)
        try:
            code = one.process.wait(limits().stop)
        except subprocess.TimeoutExpired:
            raise LinkError(f"{one.part.name}: closed its output, but does not end") from None
        if code or not one.ready:
            why = (one.errors or [f"exit code {code}"])[0]
            raise LinkError(f"{one.part.name}: {why}")


if __name__ == "__main__":
    try:
        run_group(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Part]))
    except LinkError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        sys.exit(error.exit_code)
