"""Send under a policy in the kernel, and write its record of the connection each 10 ms.

python -m benchmarks.record_connection 100.64.0.1 4730 distrlcc 10 FILE
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from socket import socket

import numpy as np

from distrlcc.net.kernel import bpf
from distrlcc.net.kernel.tcp_flow import send
from distrlcc.policy.kernel_layout import CONNECTION


def value_of(fd: int, socket_fd: int) -> bytes:
    """Return what a map of sockets' storage has for a socket of this process, or raise OSError."""
    value = ctypes.create_string_buffer(1 << 16)  # another version's may be larger
    key = ctypes.c_int(socket_fd)
    bpf.libbpf().call("bpf_map_lookup_elem", fd, ctypes.byref(key), value)
    return value.raw[: CONNECTION.itemsize]


def record(host: str, port: int, control: str, seconds: float, file: Path) -> None:
    """Send as fast as the policy lets us, and write an array of `CONNECTION`."""
    kept: list[bytes] = []

    def keep(flow: socket) -> None:
        for fd in bpf.maps_named("connections"):
            with suppress(FileNotFoundError):  # another policy's
                kept.append(value_of(fd, flow.fileno()))

    send(host, port, control, seconds, on_sample=keep)
    np.save(file, np.frombuffer(b"".join(kept), CONNECTION))


if __name__ == "__main__":
    host, port, control, seconds, file = sys.argv[1:]
    record(host, int(port), control, float(seconds), Path(file))
