"""A command that runs outside the link while COMMAND runs behind it, such as a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from distrlcc.errors import LinkError
from distrlcc.net.kernel_calls import die_with_parent

ENDED = "ended before COMMAND"
"""What is said of a command that failed by itself, such as a server that did not start."""
_SECONDS = 5.0
_TICK = 0.05


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Run a command; end it afterwards.

    Args:
        command: Program and arguments.
        environment: All of its variables; None: this process's.
        prepare: Called in the new process before the program starts.

    Raises:
        LinkError: It cannot be started.
    """

    def before_exec() -> None:
        die_with_parent(signal.SIGKILL)
        prepare()

    try:
        # A session of its own: Ctrl-C and the terminal's input are COMMAND's.
        process = subprocess.Popen(
            command, env=environment, preexec_fn=before_exec, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise LinkError(
            f"--outside: {command[0]} cannot be started ({error.strerror}); check its path"
        ) from None
    try:
        yield
    finally:
        if process.poll():
            sys.stderr.write(
                f"distrlcc: --outside: {command[0]} {ENDED}, with exit code {process.returncode}\n"
            )
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started: in good order, then by force."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # there may be others when it has ended itself
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(_TICK)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
