"""A command that runs outside the link while COMMAND runs behind it, such as a server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from distrlcc.errors import LinkError
from distrlcc.net.kernel_calls import die_with_parent

_SECONDS = 5.0


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
        if process.poll():  # by itself: a server that did not start, say
            sys.stderr.write(
                f"distrlcc: --outside: {command[0]} ended before COMMAND, with exit code "
                f"{process.returncode}\n"
            )
        process.terminate()
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
