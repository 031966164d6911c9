"""Runs `distrlcc emulate` as users do, with programs behind the link and servers outside."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from distrlcc.net.emulator.namespace import is_privileged

SOURCE = Path(__file__).parents[2] / "src"
NO_TUN = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh")
"""Words before a command that hide /dev/net/tun from it."""


class Emulator:
    """Starts emulators and, at the end, sees that none is left."""

    def __init__(self) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.environment.pop("MAHIMAHI_BASE", None)
        self.interpreter = sys.executable
        self._processes: list[subprocess.Popen[str]] = []

    def python(self, code: str) -> list[str]:
        """Return the words that run a Python program."""
        return [self.interpreter, "-S", "-c", textwrap.dedent(code)]

    def words(self, flags: str, *more: str, command: Sequence[str] = ()) -> list[str]:
        """Return a command line; ``flags`` has several words, ``more`` are one each."""
        emulate = (self.interpreter, "-m", "distrlcc", "emulate")
        return [*emulate, *flags.split(), *more, "--", *command]

    def start(
        self, *flags: str, command: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start an emulator."""
        words, pipe = [*prefix, *self.words(*flags, command=command)], subprocess.PIPE
        process = subprocess.Popen(
            words, env=self.environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._processes.append(process)
        return process

    def run(self, *flags: str, **words: Sequence[str]) -> tuple[int, str, str]:
        """Run an emulator to its end; return its exit code and what was printed."""
        process = self.start(*flags, **words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """What runs emulators, where this machine lets root make them."""
    if not is_privileged():
        pytest.skip("needs root: network namespaces")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/net/tun")
    emulator = Emulator()
    yield emulator
    emulator.close()
