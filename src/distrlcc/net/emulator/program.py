"""Runs a user's program, by a shell, as the sender or the receiver of a flow.

    python -m distrlcc.net.emulator.program sender|receiver SECONDS COMMAND

A sender waits as in `distrlcc.net.emulator.command_group`. A program that goes on for too long is
killed, with all that it started.
"""

import os
import signal
import subprocess
import sys
from functools import partial
from tempfile import TemporaryFile

from distrlcc.errors import LinkError
from distrlcc.limits import limits
from distrlcc.net.emulator.command_group import wait_for_start
from distrlcc.processes import die_with_parent

_ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--", "sh", "-c")
"""Processes of their own numbers, which all end with the first."""
_SHOWN = 1000  # bytes that are kept of the end of what a program says


def run_program(command: str, seconds: float) -> None:
    """Run a shell command for so many seconds, and `Limits.kill` more; raises LinkError."""
    with TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                (*_ALONE, command),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with_parent, signal.SIGKILL, parent=os.getpid()),
            )
        except FileNotFoundError:
            raise LinkError("a program needs the command unshare, of util-linux") from None
        with process:
            try:
                code = process.wait(seconds + limits().kill)
            except subprocess.TimeoutExpired:
                process.kill()
                return
        if code:
            said.seek(max(said.seek(0, 2) - _SHOWN, 0))
            text = said.read().decode(errors="replace").strip()
            last = text.splitlines()[-1].strip() if text else "no output"
            raise LinkError(f"{command!r} ended with exit code {code}: {last}")


if __name__ == "__main__":
    role, length, words = sys.argv[1:]
    try:
        if role == "sender":
            wait_for_start(sys.stdout)
        run_program(words, float(length))
    except LinkError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        sys.exit(error.exit_code)
