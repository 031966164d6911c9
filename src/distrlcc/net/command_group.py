"""Runs several commands at once; the senders among them begin at start times of one clock.

python -m distrlcc.net.command_group PARTS.json

Each command has a process of its own. A sender takes seconds to be ready (it imports, connects,
loads a policy), so it calls `wait_for_start`: it says ``ready`` in a line of its own and reads a
line, its start time in s of the machine's monotonic clock, or nothing for now. The group names the
start times once all senders are ready. When one command fails the others end; all end with this
process.
"""

from __future__ import annotations

import json
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
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from distrlcc.errors import LinkError
from distrlcc.processes import die_with_parent

BASE = "$MAHIMAHI_BASE"
"""Stands in a command for the variable's value."""
READY = "ready"
_READY_SECONDS = 45.0
_LEAD_SECONDS = 0.1
"""From naming the start times to the first of them."""
_LONGEST_SECONDS = 86_400.0
"""Far beyond any scenario; whatever starts this has a limit of its own."""
_END_SECONDS = 10.0
_PATIENCE_SECONDS = 600.0
_LONGEST_LINE = 100
_LOOK_SECONDS = 0.1
_ERROR = "error: "


def wait_for_start(
    out: TextIO, *, source: int = 0, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Say that all is ready, and return at the start time that is named.

    Args:
        out: Where to say it.
        source: A descriptor to read the start time from.
        stopping: Asked now and then; True ends the wait.

    Raises:
        LinkError: None was named, or it was stopped before.
    """
    out.write(f"{READY}\n")
    out.flush()
    line = _read_line(source, stopping).strip()
    try:
        start_time = float(line or 0.0)
    except ValueError:
        start_time = math.nan
    if not -math.inf < start_time < time.monotonic() + _LONGEST_SECONDS:
        raise LinkError(
            f"{line[:_LONGEST_LINE]!r} is no start time; expected s of the monotonic clock, at "
            "most a day ahead, or nothing"
        )
    while (left := start_time - time.monotonic()) > 0:
        if stopping():
            raise LinkError("stopped before the start time")
        time.sleep(min(left, _LOOK_SECONDS))


def _read_line(source: int, stopping: Callable[[], bool]) -> str:
    deadline, line = time.monotonic() + _PATIENCE_SECONDS, b""
    while b"\n" not in line and len(line) < _LONGEST_LINE:
        if stopping():
            raise LinkError("stopped before a start time was named")
        if time.monotonic() > deadline:
            raise LinkError(f"no start time was named within {_PATIENCE_SECONDS:.0f} s")
        if select.select([source], [], [], _LOOK_SECONDS)[0]:
            data = os.read(source, _LONGEST_LINE)
            if not data:
                raise LinkError("standard input ended before it named a start time")
            line += data
    return line.partition(b"\n")[0].decode(errors="replace")


@dataclass(frozen=True)
class Part:
    """A command."""

    name: str
    """In messages."""
    words: tuple[str, ...]
    start_s: float | None = None
    """When it begins, s after the first start time; None: at once, without waiting for one."""


@dataclass
class _Running:
    """A part's process and what it has printed."""

    part: Part
    process: subprocess.Popen[bytes]
    ready: bool
    unfinished: bytes = b""
    """Of a line."""
    errors: list[str] = field(default_factory=list)

    def read(self, data: bytes) -> None:
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            self.ready = self.ready or text == READY
            if _ERROR in text:
                self.errors.append(text.partition(_ERROR)[2])

    def name_start(self, start_time: float) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # how it ended is found out where its output does
            self.process.stdin.write(f"{start_time!r}\n".encode())
            self.process.stdin.flush()


def write_parts(path: Path, parts: Sequence[Part]) -> None:
    """Write the file that names the commands."""
    path.write_text(json.dumps([asdict(part) for part in parts]), encoding="utf-8")


def run_group(parts: Sequence[Part], *, ready_seconds: float = _READY_SECONDS) -> None:
    """Run commands until all have ended.

    Args:
        parts: The commands.
        ready_seconds: How long senders may take until they are ready, s.

    Raises:
        LinkError: One failed, or a sender was not ready in time.
    """
    with ExitStack() as stack:
        # Start all of them.
        selector = stack.enter_context(selectors.DefaultSelector())
        running = [stack.enter_context(_started(part)) for part in parts]
        for one in running:
            assert one.process.stdout is not None
            selector.register(one.process.stdout, selectors.EVENT_READ, one)
        # Wait until every sender is ready.
        deadline = time.monotonic() + ready_seconds
        while waiting := [one.part.name for one in running if not one.ready]:
            if time.monotonic() > deadline:
                late = ", ".join(waiting)
                raise LinkError(f"{late}: not ready to send within {ready_seconds:.0f} s")
            _read_output(selector, deadline - time.monotonic())
        # Name the start times, and wait until all have ended.
        begin = time.monotonic() + _LEAD_SECONDS
        for one in running:
            if one.part.start_s is not None:
                one.name_start(begin + one.part.start_s)
        deadline = begin + _LONGEST_SECONDS
        while selector.get_map():
            if time.monotonic() > deadline:
                raise LinkError(f"not all ended within {_LONGEST_SECONDS:.0f} s")
            _read_output(selector, deadline - time.monotonic())


@contextmanager
def _started(part: Part) -> Iterator[_Running]:
    base = os.environ.get(BASE[1:], "")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [word.replace(BASE, base) for word in part.words],
        bufsize=0,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(die_with_parent, signal.SIGKILL),
    )
    with process:
        try:
            yield _Running(part, process, part.start_s is None)
        finally:
            process.kill()


def _read_output(selector: selectors.BaseSelector, seconds: float) -> None:
    """Wait for output, and find out which commands have ended."""
    for key, _ in selector.select(max(seconds, 0.0)):
        one: _Running = key.data
        data = os.read(key.fd, 1 << 16)
        if data:
            one.read(data)
            continue
        selector.unregister(key.fileobj)
        try:
            code = one.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise LinkError(f"{one.part.name}: closed its output, but does not end") from None
        if code or not one.ready:
            why = (one.errors or [f"exit code {code}"])[0]
            raise LinkError(f"{one.part.name}: {why}")


def main(path: str) -> int:
    """Run the commands of a file."""
    parts = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        run_group([Part(one["name"], tuple(one["words"]), one["start_s"]) for one in parts])
    except LinkError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
