"""Commands of ``distrlcc kernel``, also on machines that lack something; and passing names."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from distrlcc.evaluation.contender import contender_from_file
from distrlcc.evaluation.kernel_policy import kernel_policy
from distrlcc.net.emulator.namespace import enable_loopback, is_privileged, new_network
from distrlcc.net.kernel import tcp as kernel_tcp
from distrlcc.net.kernel.tcp_flow import kernel_controls

LOAD = (sys.executable, "-m", "distrlcc", "kernel")


@pytest.fixture(scope="module")
def record() -> kernel_tcp.Record:
    """A shipped policy as the kernel takes it, where this machine's takes one."""
    for problem in kernel_tcp.problems():
        pytest.skip(problem)
    if not is_privileged():
        pytest.skip("needs root: network namespaces")
    return kernel_policy(contender_from_file("one"))


@pytest.fixture
def name() -> Iterator[str]:
    """A control's name that no other test has; none is left behind, nor a word in the log."""
    name = f"rl{os.getpid()}"
    with Path("/dev/kmsg").open("rb", buffering=0) as log:
        os.set_blocking(log.fileno(), False)
        log.seek(0, os.SEEK_END)
        yield name
        assert name not in kernel_controls()
        said = []
        with suppress(BlockingIOError):
            while True:
                said.append(os.read(log.fileno(), 8192).decode(errors="replace"))
    bad = ("BUG", "WARNING", "Oops", "bpf", "stall", "hung")
    assert [line for line in said if any(word in line for word in bad)] == []


@pytest.fixture
def network() -> Iterator[None]:
    """A network of this test's own, with loopback alone."""
    with new_network():
        enable_loopback()
        yield


def connect() -> tuple[socket.socket, socket.socket]:
    """Return a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=5)
        far, _ = server.accept()
    far.settimeout(5)
    return near, far


def run_command(*words: str, prefix: tuple[str, ...] = ()) -> tuple[int, str, str]:
    done = subprocess.run(
        [*prefix, *LOAD, *words], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def hidden(*paths: str) -> tuple[str, ...]:
    """Return words before a command from which files and folders are hidden."""
    mounts = (
        f"mount -t tmpfs none {path}" if Path(path).is_dir() else f"mount --bind /dev/null {path}"
        for path in paths
    )
    return ("unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh")


def system_libbpf() -> list[str]:
    """Return where the system's libbpf lies, if there is one."""
    with suppress(OSError):
        ctypes.CDLL("libbpf.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return list({line.split()[-1] for line in lines if "/libbpf.so" in line})
