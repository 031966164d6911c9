"""Runs several commands at once; senders among them begin at moments of one clock.

python -m distrlcc.net.together PARTS.json

Each command has a process of its own. A sender takes seconds to be ready (it imports, connects,
loads a policy), so it is told when to begin only once all of them are: see
`distrlcc.net.moment`. When one fails the others end; all end with this process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from distrlcc.errors import LinkError
from distrlcc.net.kernel_calls import die_with_parent
from distrlcc.net.moment import READY

BASE = "$MAHIMAHI_BASE"
"""Stands in a command for the variable's value."""
_READY_SECONDS = 45.0
_LEAD_SECONDS = 0.1
"""From telling the moments to the first of them."""
_LONGEST_SECONDS = 86_400.0
"""Far beyond any scenario; who starts this has a limit of its own."""
_END_SECONDS = 10.0
_ERROR = "error: "


@dataclass(frozen=True)
class Part:
    """A command."""

    name: str
    """In messages."""
    words: tuple[str, ...]
    start_s: float | None = None
    """When it begins, s after the first moment; None: at once, without being told."""


@dataclass
class _Running:
    """A part's process and what it has said."""

    part: Part
    process: subprocess.Popen[bytes]
    ready: bool
    begun: bytes = b""
    """Of a line."""
    errors: list[str] = field(default_factory=list)

    def hear(self, data: bytes) -> None:
        """Take output."""
        *lines, self.begun = (self.begun + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            self.ready = self.ready or text == READY
            if _ERROR in text:
                self.errors.append(text.partition(_ERROR)[2])

    def tell(self, moment: float) -> None:
        """Say when to begin."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{moment!r}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:  # how it ended is found out where its output does
            return


def write_parts(path: Path, parts: Sequence[Part]) -> None:
    """Write the file that names the commands."""
    path.write_text(json.dumps([asdict(part) for part in parts]), encoding="utf-8")


def run_together(parts: Sequence[Part], *, ready_seconds: float = _READY_SECONDS) -> None:
    """Run commands until all have ended.

    Args:
        parts: The commands.
        ready_seconds: How long senders may take until they are ready, s.

    Raises:
        LinkError: One failed, or a sender was not ready in time.
    """
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        running = [stack.enter_context(_started(part)) for part in parts]
        for one in running:
            assert one.process.stdout is not None
            selector.register(one.process.stdout, selectors.EVENT_READ, one)
        deadline = time.monotonic() + ready_seconds
        while waiting := [one.part.name for one in running if not one.ready]:
            if time.monotonic() > deadline:
                who = ", ".join(waiting)
                raise LinkError(f"{who}: not ready to send within {ready_seconds:.0f} s")
            _listen(selector, deadline - time.monotonic())
        begin = time.monotonic() + _LEAD_SECONDS
        for one in running:
            if one.part.start_s is not None:
                one.tell(begin + one.part.start_s)
        deadline = begin + _LONGEST_SECONDS
        while selector.get_map():
            if time.monotonic() > deadline:
                raise LinkError(f"not all ended within {_LONGEST_SECONDS:.0f} s")
            _listen(selector, deadline - time.monotonic())


@contextmanager
def _started(part: Part) -> Iterator[_Running]:
    base = os.environ.get(BASE[1:], "")
    process = subprocess.Popen(
        [word.replace(BASE, base) for word in part.words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
        preexec_fn=partial(die_with_parent, signal.SIGKILL),
    )  # fmt: skip
    with process:
        try:
            yield _Running(part, process, part.start_s is None)
        finally:
            process.kill()


def _listen(selector: selectors.BaseSelector, seconds: float) -> None:
    """Wait for output, and see who has ended."""
    for key, _ in selector.select(max(seconds, 0.0)):
        one: _Running = key.data
        data = os.read(key.fd, 1 << 16)
        if data:
            one.hear(data)
            continue
        selector.unregister(key.fileobj)
        try:
            code = one.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise LinkError(f"{one.part.name}: it said all, but does not end") from None
        if code or not one.ready:
            why = (one.errors or [f"exit code {code}"])[0]
            raise LinkError(f"{one.part.name}: {why}")


def main(path: str) -> int:
    """Run the commands of a file."""
    parts = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        run_together([Part(one["name"], tuple(one["words"]), one["start_s"]) for one in parts])
    except LinkError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
