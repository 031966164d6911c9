"""One TLS port per machine, through which alone the machines of a run speak with each other.

PyTorch and torchft admit whoever reaches their ports, so these are on loopback only. A connection
to another machine goes to a loopback listener of this machine's tunnel, through TLS to the other's
tunnel, and on to its port. Both sides show a certificate made of the run's token. The tunnel is a
process of its own, this module its program; `distrlcc.parallel.gate` asks it.
"""

import asyncio
import asyncio.sslproto
import hashlib
import os
import resource
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import msgspec

from distrlcc.limits import limits
from distrlcc.net.emulator.namespace import on_loopback
from distrlcc.parallel.interface import LOOPBACK, is_ours
from distrlcc.processes import die_with_parent, run_soon

_UNFINISHED, _UNFINISHED_OF_HOST, _DIALS = 256, 32, 16
"""Connections that have not proved yet that they know the token: of all, of one host; own ones."""
_BUFFER = 1 << 15
"""Bytes that asyncio sets aside for each connection, 256 kB by itself: 64 MB for strangers."""
_EARLY = 1 << 16  # bytes that wait for the other end to be there
_FOUND, _ABSENT = b"+", b"-"

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Name = Annotated[str, msgspec.Meta(max_length=64)]


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """A process's question to its machine's tunnel; without a host, to let others reach a port."""

    target: Port | Name
    """A loopback port or the name of an abstract Unix socket, registered there; or a service."""
    host: Name = ""
    port: Port = 1


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """The loopback port that leads to what was asked for, or why none does."""

    port: int = 0
    gateway: str = ""  # where others reach this machine's tunnel, as address:port
    problem: str = ""  # ``refused``, ``token``, ``stranger`` or ``unreachable``
    text: str = ""


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of the tunnel's process, told at its start."""

    address: str
    token: str
    services: dict[str, int]
    listener: int
    control: int
    parent: int


def contexts(token: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the sides of TLS that listen and that connect, for holders of one token only."""
    # Imported here: only the tunnel's own process needs them.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    # The certificate is the same wherever it is made. Guessing tokens must be slow.
    seed = hashlib.scrypt(token.encode(), salt=b"distrlcc tunnel", n=1 << 14, r=8, p=1, dklen=32)
    key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "distrlcc")])
    builder = x509.CertificateBuilder().issuer_name(name).subject_name(name)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(datetime(1970, 1, 1)).not_valid_after(datetime(9999, 1, 1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.sign(key, None).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    sides = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with open(os.memfd_create("certificate"), "wb") as file:  # ssl reads it from a file only
        file.write(private + certificate)
        file.flush()
        for side in sides:
            side.minimum_version = ssl.TLSVersion.TLSv1_3
            side.check_hostname = False
            side.verify_mode = ssl.CERT_REQUIRED
            side.load_verify_locations(cadata=certificate.decode())
            side.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    sides[0].num_tickets = 0
    return sides


class _End(asyncio.Protocol):
    """One end of a connection: what comes is kept, then written to the end that it is joined to."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._early, self._news = bytearray(), asyncio.Event()
        self._other: _End | None = None
        self._gone = False
        self.answers: tuple[bytes, bytes] | None = None
        """An address that the first bytes from here may have, and what to say instead."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._pass(data, self._other)
            return
        self._early += data
        self._news.set()
        if len(self._early) > _EARLY:
            self.transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._gone = True
        self._news.set()
        if self._other is not None:
            self._other.transport.close()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.transport.resume_reading()

    def _pass(self, data: bytes, to: "_End") -> None:
        # TensorPipe's listener answers with its own address, to which a second connection is made.
        if self.answers is not None and data:
            data, self.answers = data.replace(*self.answers), None
        to.transport.write(data)

    async def read(self, count: int) -> bytes:
        """Return the next bytes that came before this end was joined to another."""
        while len(self._early) < count:
            if self._gone:
                raise ConnectionResetError("connection lost")
            self._news.clear()
            await self._news.wait()
        data = bytes(self._early[:count])
        del self._early[:count]
        return data

    def join(self, other: "_End") -> None:
        """Write to each what comes from the other, and close both with either."""
        for end, to in ((self, other), (other, self)):
            end._other = to
            end._pass(bytes(end._early), to)
            end._early.clear()
            end.transport.resume_reading()
        for end, to in ((self, other), (other, self)):
            if end._gone:
                to.transport.close()


class _Server:
    """The tunnel's own process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listens, self._dials = contexts(settings.token)
        self._listener = socket.socket(fileno=settings.listener)
        self._control = socket.socket(fileno=settings.control)
        self._gateway = f"{settings.address}:{self._listener.getsockname()[1]}"
        self._registered = Counter[int | str]()
        """Loopback ports and Unix sockets of this machine's processes."""
        self._unfinished: dict[str, dict[asyncio.Task[None], None]] = {}
        """Each host's connections, oldest first, that have not proved yet to know the token."""
        self._ways: dict[tuple[str, int, str], int] = {}  # loopback ports that lead to services
        self._turns: dict[tuple[str, int], asyncio.Semaphore] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def run(self) -> None:
        """Serve until the process is killed."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_say)
        await asyncio.start_unix_server(self._attend, sock=self._control)
        self._listener.setblocking(False)
        while True:
            try:
                connection, (host, _) = await loop.sock_accept(self._listener)
            except OSError:  # it was reset already, or there are too many files
                await asyncio.sleep(limits().tick)
                continue
            waiting = self._unfinished.setdefault(host, {})
            full = sum(map(len, self._unfinished.values())) >= _UNFINISHED
            crowd = max(self._unfinished.values(), key=len) if full else waiting
            if full or len(crowd) >= _UNFINISHED_OF_HOST:
                # End a host's oldest attempt, so that its newest and other hosts' have room.
                oldest = next(iter(crowd))
                del crowd[oldest]
                oldest.cancel()
            task = self._do(self._admit(connection, host))
            waiting[task] = None
            await asyncio.sleep(0)  # a flood of connections must not keep others waiting

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # From other machines

    async def _admit(self, connection: socket.socket, host: str) -> None:
        """Check a peer's token and connect it to the service it names."""
        loop, end = asyncio.get_running_loop(), _End()
        try:
            _keep_alive(connection)
            async with asyncio.timeout(limits().call):
                await loop.connect_accepted_socket(lambda: end, connection, ssl=self._listens)
                (size,) = await end.read(1)
                target: int | str = msgspec.msgpack.decode(await end.read(size), type=Port | Name)
        except (OSError, ValueError, asyncio.CancelledError):  # ValueError: it asks for nothing
            _abort(end)
            connection.close()
            return
        finally:
            task = asyncio.current_task()
            waiting = self._unfinished.get(host, {})
            if task is not None:
                waiting.pop(task, None)
            if not waiting:
                self._unfinished.pop(host, None)
        # It is one of us. Where does it want to go?
        known = self._registered[target] > 0
        port = target if isinstance(target, int) else self._settings.services.get(target, 0)
        try:
            if known and isinstance(target, str):
                _, inner = await loop.create_unix_connection(_End, f"\0{target}")
            else:
                own = known or isinstance(target, str)
                line = on_loopback(socket.socket, socket.AF_INET, socket.SOCK_STREAM)
                line.setblocking(False)
                await loop.sock_connect(line, (LOOPBACK, port if own else 0))
                _, inner = await loop.create_connection(_End, sock=line)
        except (OSError, OverflowError):
            end.transport.write(_ABSENT)
            end.transport.close()
            return
        end.transport.write(_FOUND)
        end.join(inner)

    # To other machines

    async def _dial(self, ask: Ask) -> _End:
        """Return a connection to another machine's port or service."""
        loop, end, where = asyncio.get_running_loop(), _End(), (ask.host, ask.port)
        header = msgspec.msgpack.encode(ask.target)
        own = (self._settings.address, 0)
        try:
            async with asyncio.timeout(limits().call):
                async with self._turns.setdefault(where, asyncio.Semaphore(_DIALS)):
                    await loop.create_connection(
                        lambda: end, *where, ssl=self._dials, local_addr=own
                    )
                    _keep_alive(end.transport.get_extra_info("socket"))
                    end.transport.write(bytes([len(header)]) + header)
                    found = await end.read(1)
            if found != _FOUND:
                raise ConnectionRefusedError("nothing listens there")
        except BaseException:
            _abort(end)
            raise
        return end

    async def _lead(self, ask: Ask, end: _End) -> None:
        """Join a connection of a process here to what it is for elsewhere."""
        try:
            far = await self._dial(ask)
            if isinstance(ask.target, int):
                port = end.transport.get_extra_info("sockname")[1]
                old, new = (f"{LOOPBACK}:{number}".encode() for number in (ask.target, port))
                far.answers = old, new
            end.join(far)
        except OSError:
            end.transport.close()

    # For this machine's processes

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one process for as long as it is there; what it asked for goes with it."""
        targets, servers = list[int | str](), list[asyncio.Server]()
        try:
            own = is_ours(writer.get_extra_info("socket"))
            while own and (line := await reader.readline()):
                ask = msgspec.json.decode(line, type=Ask)
                answer = await self._answer(ask, targets, servers)
                writer.write(msgspec.json.encode(answer) + b"\n")
        except (OSError, ValueError):
            pass
        finally:
            writer.close()
            self._registered.subtract(targets)
            for server in servers:
                server.close()

    async def _answer(
        self, ask: Ask, targets: list[int | str], servers: list[asyncio.Server]
    ) -> Answer:
        target, here = ask.target, f"{ask.host}:{ask.port}" == self._gateway
        # A process here wants to be reached?
        if not ask.host:
            targets.append(target)
            self._registered[target] += 1
            return Answer(gateway=self._gateway)
        if here:
            return Answer(self._settings.services.get(str(target), 0))
        # A service is tried first, to say what is wrong; then all share one way to it.
        if isinstance(target, int):
            return Answer(await self._open(ask, servers))
        try:
            _abort(await self._dial(ask))
        except OSError as error:
            return _problem(error)
        way = (ask.host, ask.port, target)
        if way not in self._ways:
            self._ways[way] = await self._open(ask, [])
        return Answer(self._ways[way])

    async def _open(self, ask: Ask, servers: list[asyncio.Server]) -> int:
        """Return a new loopback port that leads to what is asked for."""

        class Local(_End):
            def connection_made(end, transport: asyncio.BaseTransport) -> None:  # noqa: N805
                super().connection_made(transport)
                self._do(self._lead(ask, end))

        listener = on_loopback(socket.create_server, (LOOPBACK, 0))
        server = await asyncio.get_running_loop().create_server(Local, sock=listener)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])


def _say(_: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
    """Tell of an error of our own; what strangers send is not for the terminal."""
    error = what.get("exception")
    if error is not None and not isinstance(error, OSError):
        sys.stderr.write(f"distrlcc: the tunnel goes on after {error!r:.200}\n")
        sys.stderr.flush()


def _problem(error: OSError) -> Answer:
    kind = "unreachable"
    if isinstance(error, ConnectionRefusedError):
        kind = "refused"
    elif isinstance(error, ssl.SSLCertVerificationError):
        kind = "token"
    elif isinstance(error, ssl.SSLError):
        kind = "stranger"
    return Answer(problem=kind, text=error.strerror or str(error) or "no answer")


def _abort(end: _End) -> None:
    with suppress(AttributeError):  # it was never connected
        end.transport.abort()


def _keep_alive(connection: socket.socket) -> None:
    """Let a connection end when the other machine has been gone for a while."""
    seconds, tcp = int(limits().absence), socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, max(1, seconds // 3))
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, max(1, seconds // 9))
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, seconds * 1000)


def main() -> None:
    """Be the tunnel's process; its settings come on standard input."""
    settings = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Settings)
    die_with_parent(signal.SIGKILL, parent=settings.parent)
    run_soon()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.sslproto.SSLProtocol.max_size = _BUFFER
    asyncio.run(_Server(settings).run())


if __name__ == "__main__":
    main()
