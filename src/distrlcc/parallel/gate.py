"""How processes reach other machines: they open this machine's tunnel, and ask it for ports."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec
import torch.distributed as dist

from distrlcc.errors import GroupError, NoGroupError
from distrlcc.limits import limits
from distrlcc.net.emulator.namespace import NETWORK
from distrlcc.parallel.admission import TOKEN
from distrlcc.parallel.tunnel import Answer, Ask, Settings
from distrlcc.runs.stopper import SIGNALS

_GLOO = re.compile(rb"\x02\x00(..)\x7f\x00\x00\x01", re.DOTALL)
"""A sockaddr_in on loopback, its port in network order."""
_RPC = re.compile(rb"uv://127\.0\.0\.1:(\d{1,5})")
_GATEWAY = re.compile(rb"\d{1,3}(?:\.\d{1,3}){3}:(\d{1,5})")
_MARK = b"distrlcc gateway "
_MOST_PORT, _SHOWN = 65535, 60


class Tunnel:
    """This machine's tunnel, as whoever opened it has it; it ends with its opener."""

    def __init__(self, listener: socket.socket, token: str, services: dict[str, int]) -> None:
        """Serve others there who know the token; ``services`` has loopback ports by name."""
        address, self.port = listener.getsockname()
        self.name = f"distrlcc-{secrets.token_hex(8)}"
        """Where this machine's processes ask: an abstract Unix socket."""
        with listener, socket.socket(socket.AF_UNIX) as control:
            control.bind(f"\0{self.name}")
            control.listen(512)
            files = listener.fileno(), control.fileno()
            settings = Settings(address, token, services, *files, os.getpid())
            # Its opener ends it: a signal to all processes must not.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                program = [sys.executable, "-P", "-m", "distrlcc.parallel.tunnel"]
                self._process = subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=files)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(msgspec.msgpack.encode(settings))

    @property
    def ended(self) -> str:
        """Why the tunnel's process has ended; empty while it lives."""
        if self._process.poll() is None:
            return ""
        return f"the tunnel to the other machines (process {self._process.pid}) ended"

    def close(self) -> None:
        """End it and all connections to other machines."""
        self._process.kill()
        self._process.wait(limits().stop)


class Gate(AbstractContextManager["Gate"]):
    """A connection to the tunnel process; its forwards end with it."""

    def __init__(self, name: str) -> None:
        """Open it to the tunnel of this name; raises GroupError if the tunnel is gone."""
        self._socket, self._lock = socket.socket(socket.AF_UNIX), threading.Lock()
        self._socket.settimeout(2 * limits().call)
        try:
            self._socket.connect(f"\0{name}")
        except OSError as error:
            self._socket.close()
            raise _gone(error) from None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the line."""
        self._socket.close()

    def register(self, target: int | str) -> str:
        """Let others reach a loopback port, or a Unix socket by its name; return address:port."""
        return self._ask(Ask(target)).gateway

    def way(self, gateway: str, target: str | int) -> int:
        """Return a loopback port that leads to a port or service behind another tunnel.

        Raises OSError if the service cannot be reached; GroupError if the token differs, or either
        tunnel is gone.
        """
        host, _, port = gateway.rpartition(":")
        answer = self._ask(Ask(target, host, int(port)))
        if answer.problem == "token":
            raise NoGroupError(
                f"the master at {gateway} has another {TOKEN} than this process; set the same one "
                "on every machine"
            )
        if answer.problem == "stranger":
            raise NoGroupError(not_a_master(gateway, answer.text))
        if answer.problem:
            refused = answer.problem == "refused"
            raise (ConnectionRefusedError if refused else OSError)(0, answer.text)
        return answer.port

    def _ask(self, ask: Ask) -> Answer:
        try:
            with self._lock:
                self._socket.sendall(msgspec.json.encode(ask) + b"\n")
                line = b""
                while not line.endswith(b"\n"):
                    line += (part := self._socket.recv(4096))
                    if not part:
                        raise ConnectionResetError("connection lost")
        except OSError as error:
            self.close()  # a late answer would be taken for that to the next question
            raise _gone(error) from None
        return msgspec.json.decode(line, type=Answer)


def not_a_master(where: str, reason: str) -> str:
    """Return the line that says so."""
    reason = f" ({reason})" if reason else ""
    return f"what listens at {where} is not a distrlcc master{reason}; give another --port"


def _gone(error: OSError) -> GroupError:
    return GroupError(f"this machine's tunnel does not answer ({error.strerror or error})")


def _passed_on(name: str) -> Any:
    return lambda self, *args: getattr(self._store, name)(*args)


class TunnelStore(dist.Store):  # type: ignore[misc, name-defined]
    """A store in which members tell each other where they listen, as each can reach it.

    An own address on loopback is registered at the tunnel and told with this machine's gateway; of
    another machine's, the port is replaced by one that leads there.
    """

    def __init__(self, store: Any, gate: Gate) -> None:
        """Translate what goes into a store and comes out of it."""
        super().__init__()
        self._store, self._gate = store, gate
        self._own: tuple[str, int] = ("", 0)

    def set(self, key: str, value: Any) -> None:
        """See torch's Store."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        if port := _port(data):
            self._own = self._gate.register(port), port
            data = b"%b%b\n%b" % (_MARK, self._own[0].encode(), data)
        self._store.set(key, data)

    def get(self, key: str) -> bytes:
        """See torch's Store; GroupError: a member told something else than where it listens."""
        data = bytes(self._store.get(key))
        if not data.startswith(_MARK):
            return data
        place, _, data = data.removeprefix(_MARK).partition(b"\n")
        found, port = _GATEWAY.fullmatch(place), _port(data)
        if found is None or not (0 < int(found[1]) <= _MOST_PORT and 0 < port <= _MOST_PORT):
            raise GroupError(f"a member said that it listens at {(place + data)[:_SHOWN]!r}")
        gateway = place.decode()
        # On one loopback all reach each other directly.
        there, here = gateway, self._own[0]
        if NETWORK not in os.environ:
            there, here = (each.rpartition(":")[0] for each in (there, here))
        if there == here:
            return data
        if _RPC.fullmatch(data):
            return b"uv://127.0.0.1:%d" % self._gate.way(gateway, port)
        # Of two gloo members the one with the greater address connects. So that both agree, each
        # sees the other's as all zeros, which is this machine, or as the greatest on loopback.
        address = b"\x02\x00\x00\x01\x7f\xff\xff\xfe"
        if self._own > (gateway, port):
            address = b"\x02\x00" + self._gate.way(gateway, port).to_bytes(2, "big") + bytes(4)
        return _GLOO.sub(lambda _: address, data, count=1)

    add, check, compare_set, wait = map(_passed_on, ("add", "check", "compare_set", "wait"))


def _port(data: bytes) -> int:
    """Return the port of the loopback address in what a member of gloo or RPC says; 0: none."""
    if found := _RPC.fullmatch(data):
        return int(found[1])
    found = _GLOO.search(data)
    return int.from_bytes(found[1], "big") if found else 0
