"""A stranger who scans the ports of a host and sends what none of them expects."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from distrlcc.processes import call_libc

_NEW_NETWORK = 0x40000000
_SENT = (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 512, b"\xff" * 512, os.urandom(4096), b"")
_PATIENCE = 1.0


def scan(namespace: str, ports: Iterable[tuple[str, int]]) -> int:
    """Send garbage to addresses and ports out of a network namespace, given as a path.

    Every second connection is reset, the others are closed in order.

    Returns:
        How many connections were accepted.
    """

    def send() -> int:
        """Move this thread, which ends with the scan, into the namespace."""
        with open(namespace) as place:
            call_libc("setns", place.fileno(), _NEW_NETWORK)
        return sum(_send(to, data, k % 2 > 0) for to in ports for k, data in enumerate(_SENT))

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(send).result()


def _send(to: tuple[str, int], data: bytes, reset: bool) -> bool:
    with suppress(OSError), socket.create_connection(to, _PATIENCE) as connection:
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            connection.sendall(data)
        return True
    return False
