"""The gate beside a cluster's head: who joins hears there at once whether it fits.

Both sides show that they know the token without saying it, then the head says its versions and
whether it reaches the newcomer. Ray would take 21 s to refuse a token, compares neither torch nor
our own sources, and lets a machine in that it cannot reach.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distrlcc.errors import GroupError
from distrlcc.parallel.token import TOKEN, proof, proves

GATE_SECONDS = 3.5
"""Time for the whole exchange, s."""
_CONNECT_SECONDS = 2.5
_CALL_BACK_SECONDS = 1.5
_LONGEST = 65536
_CROWD = 32
"""Newcomers at once."""


@dataclass(frozen=True)
class Welcome:
    """What the head says to who knows the token."""

    identity: dict[str, str]
    seen: str
    """The newcomer's address, as the head sees it."""
    reached: bool
    """Whether the head reached the newcomer's port."""


class Gate:
    """Listens beside the head until it is closed."""

    def __init__(self, address: str, port: int, token: str, identity: Mapping[str, str]) -> None:
        """Listen.

        Raises:
            OSError: The port is taken.
        """
        self._token, self._identity = token, dict(identity)
        self._crowd = threading.BoundedSemaphore(_CROWD)
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((address, port))
            self._listener.listen(_CROWD)
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=self._serve, daemon=True, name="gate").start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, (address, _) = self._listener.accept()
            except OSError:
                return  # closed
            if not self._crowd.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._meet, args=(connection, address), daemon=True).start()

    def _meet(self, connection: socket.socket, address: str) -> None:
        try:
            with connection:
                self._answer(_Talk(connection, GATE_SECONDS), address)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _say(f"{address} came to the gate and went: {error}")
        finally:
            self._crowd.release()

    def _answer(self, talk: _Talk, address: str) -> None:
        own = secrets.token_hex(16)
        talk.send({"nonce": own})
        try:
            told = talk.receive()
        except EOFError:  # a member, which only wants to know whether the head is there
            return
        nonce = f"{own}/{told['nonce']}"
        if not proves(told.get("proof"), nonce, "joins", self._token):
            _say(f"{address} is refused: it has another {TOKEN}")
            talk.send({"refused": "token"})
            return
        port = int(told.get("port", 0))
        reached = not port or _reaches(address, port)
        _say(f"{address} asked, and knows the token{'' if reached else f'; port {port} is closed'}")
        talk.send(
            {
                "proof": proof(nonce, "head", self._token),
                "identity": self._identity,
                "seen": address,
                "reached": reached,
            }
        )


def ask_gate(
    address: str, port: int, token: str, *, source: str = "", call_back: int = 0
) -> Welcome:
    """Ask the head of a cluster who it is.

    Args:
        address: The head's.
        port: Of its gate.
        token: The cluster's.
        source: This machine's address to leave from.
        call_back: A port of this machine's, which the head tries to reach; 0: none.

    Raises:
        GroupError: Nobody answers, or who answers has another token.
        OSError: There is no connection.
    """
    deadline = time.monotonic() + GATE_SECONDS
    with (
        _listening(source, call_back),
        socket.create_connection((address, port), _CONNECT_SECONDS, (source, 0)) as connection,
    ):
        talk = _Talk(connection, deadline - time.monotonic())
        own = secrets.token_hex(16)
        try:
            nonce = f"{talk.receive()['nonce']}/{own}"
            talk.send({"nonce": own, "proof": proof(nonce, "joins", token), "port": call_back})
            told = talk.receive()
            if told.get("refused") != "token":
                welcome = Welcome(
                    {str(k): str(v) for k, v in told["identity"].items()},
                    str(told["seen"]),
                    bool(told["reached"]),
                )
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise GroupError(
                f"who listens at {address}:{port} does not answer as a distrlcc gate ({error}); "
                "is another program there?",
                exit_code=2,
            ) from None
    if "refused" in told or not proves(told.get("proof"), nonce, "head", token):
        raise GroupError(
            f"the cluster at {address}:{port - 1} has another token than this machine; give its "
            f"own: 'distrlcc cluster status --show-token' on {address} shows it",
            exit_code=2,
        )
    return welcome


def gate_answers(address: str, port: int) -> bool:
    """Say whether the gate of a head is there.

    Raises:
        ConnectionRefusedError: The head's machine is, but no gate.
    """
    try:
        with socket.create_connection((address, port), _CONNECT_SECONDS) as connection:
            return "nonce" in _Talk(connection, _CONNECT_SECONDS).receive()
    except ConnectionRefusedError:
        raise
    except EOFError:  # too many came at once
        return True
    except (OSError, ValueError):
        return False


class _Talk:
    """Lines of JSON over a connection, until a deadline."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._rest = connection, b""
        self._deadline = time.monotonic() + seconds

    def send(self, value: dict[str, Any]) -> None:
        self._limit()
        self._connection.sendall(json.dumps(value).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            self._limit()
            data = self._connection.recv(4096)
            if not data:
                raise EOFError("it closed the connection")
            if len(self._rest) > _LONGEST:
                raise ValueError("it says too much")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("it does not speak JSON objects")
        return value

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("it took too long")
        self._connection.settimeout(left)


@contextmanager
def _listening(address: str, port: int) -> Iterator[None]:
    """Take connections on a port of this machine's, if one is given."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        if port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(1)
        yield


def _reaches(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CALL_BACK_SECONDS).close()
    except OSError:
        return False
    return True


def _say(line: str) -> None:
    sys.stderr.write(f"distrlcc: {line}\n")
    sys.stderr.flush()
