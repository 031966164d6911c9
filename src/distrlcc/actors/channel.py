"""The engine over a channel of our own: a worker's four calls, as frames of msgpack, never code.

The trainer's Unix socket admits the run's user alone; other machines' workers come through both
tunnels. Each proves the run's token and its admitted name. A connection that sends too long or
other frames is closed. A worker that was lost stays away, as over torch RPC.
"""

import asyncio
import hmac
import itertools
import math
import secrets
import socket
import struct
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
import numpy as np

from distrlcc.actors.actor import AHEAD, Report
from distrlcc.actors.admission import Admission
from distrlcc.actors.engine import ActorError, Changes, Holder, Worker, WorkerGoneError
from distrlcc.env.vector import LinkVectorEnv
from distrlcc.errors import ConfigError, GroupError
from distrlcc.learn.learner import Weights
from distrlcc.limits import limits
from distrlcc.net.emulator.namespace import on_loopback
from distrlcc.parallel.admission import decode, own_token, receive
from distrlcc.parallel.gate import Gate
from distrlcc.parallel.interface import LOOPBACK, interface_towards, is_ours
from distrlcc.policy.spec import expected_shapes
from distrlcc.runs.options import RankSpec
from distrlcc.runs.run_config import RunConfig
from distrlcc.runs.source import new_rollout, policy_spec

_HEAD = struct.Struct("!II")
"""Before each frame: the number of the call that it makes or answers, and its size in bytes."""
_THREADS = 2  # of a worker: one may wait for a segment while weights come
_ROOM = 1 << 20  # bytes of a frame beside its arrays, at most
_TYPES = frozenset({"<f4", "<f8", "<i8", "|b1"})  # of the arrays' items

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class _Hello(msgspec.Struct, forbid_unknown_fields=True):
    """A worker's first frame: number 0."""

    name: _Text
    proof: bytes


class _Start(msgspec.Struct, tag="start", forbid_unknown_fields=True):
    index: _Count
    first_step: _Count


class _SetWeights(msgspec.Struct, tag="set_weights", forbid_unknown_fields=True):
    weights: Weights


class _Report(msgspec.Struct, tag="report", forbid_unknown_fields=True):
    most: _Count
    seconds: float


class _Stop(msgspec.Struct, tag="stop", forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    value: int | Report | None = None
    error: str = ""


_Call: TypeAlias = _Start | _SetWeights | _Report | _Stop
_CALLS: dict[str, Any] = {kind.__struct_config__.tag: kind for kind in get_args(_Call)}


def _plain(value: Any) -> Any:
    """Return an array's type, shape and bytes; see `_array`."""
    if isinstance(value, np.generic):
        return value.item()
    whole = np.ascontiguousarray(value)
    return whole.dtype.str, value.shape, memoryview(whole.reshape(-1).view(np.uint8).data)


def _array(kind: Any, value: Any) -> Any:
    """Return the array that was sent; it cannot be written to."""
    item, shape, data = value
    wanted = get_args(get_args(kind)[1])[0]  # of NDArray[np.float32]
    if item not in _TYPES or not (wanted is Any or np.dtype(item) == wanted):
        raise ValueError(f"an array of {item!r:.20}")
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError("an array of no shape")
    return np.frombuffer(data, item).reshape(shape)


_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_hello = msgspec.msgpack.Decoder(_Hello)
_call = msgspec.msgpack.Decoder(_Call, dec_hook=_array)
_answer = msgspec.msgpack.Decoder(_Answer, dec_hook=_array)


def longest_frame(config: RunConfig) -> int:
    """Return the bytes of the longest frame that a run may need; ConfigError if none is so long."""
    spec = policy_spec(config, LinkVectorEnv(config.env.unit, config.env))
    rollout = new_rollout(config, spec, config.actors.envs_per_worker).arrays()
    weights = 4 * sum(map(math.prod, expected_shapes(spec).values()))
    most = _ROOM + max(AHEAD * sum(array.nbytes for array in rollout.values()), weights)
    if most >= 1 << 32:
        raise ConfigError(
            f"a worker's segments would take {most / 1e9:.1f} GB at once, of 4.29 at most: lower "
            "actors.envs_per_worker or the rollout_length, or have more workers"
        )
    return most


def _proof(name: str) -> bytes:
    """Prove knowledge of the run's token, if the run has one, for a name."""
    return hmac.digest(own_token().encode(), name.encode(), "sha256")


# The trainer's side


class _Link(asyncio.Protocol):
    """A connection to the trainer; it is a worker's once the worker has proved itself."""

    def __init__(self, engine: "ChannelEngine") -> None:
        self._engine, self._data = engine, bytearray()
        self.transport: asyncio.Transport
        self.worker: Worker | None = None
        self.waiting: dict[int, Future[Any]] = {}  # calls that are not answered yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._engine.open.add(self)
        if not is_ours(transport.get_extra_info("socket")):
            self._refuse("another user's process")
        asyncio.get_running_loop().call_later(limits().call, self._expect)

    def _expect(self) -> None:
        if self.worker is None and not self.transport.is_closing():
            self._refuse(f"nothing within {limits().call:g} s")

    def send(self, number: int, body: bytes) -> None:
        self.transport.writelines([_HEAD.pack(number, len(body)), body])

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _HEAD.size and not self.transport.is_closing():
            number, size = _HEAD.unpack_from(self._data)
            most = _ROOM if self.worker is None else self._engine.most
            if size > most:
                self._refuse(f"a frame of {size} bytes; expected {most} at most")
                return
            if len(self._data) < _HEAD.size + size:
                return
            frame = bytes(memoryview(self._data)[_HEAD.size : _HEAD.size + size])
            del self._data[: _HEAD.size + size]
            try:
                self._take(number, frame)
            except (ValueError, KeyError, RecursionError) as error:  # msgspec's are the first
                self._refuse(f"something else than expected ({error!s:.80})")

    def _take(self, number: int, frame: bytes) -> None:
        """Take a frame; one that is not expected raises an error."""
        if self.worker is None:
            hello = _hello.decode(frame)
            if not hmac.compare_digest(hello.proof, _proof(hello.name)):
                raise ValueError("another token")
            self.worker = self._engine.admit(hello.name, self)
            return
        answer = _answer.decode(frame)  # first: what waits must hear of a bad one
        future = self.waiting.pop(number)
        if answer.error:
            future.set_exception(ActorError(answer.error))
        else:
            future.set_result(answer.value)

    def _refuse(self, what: str) -> None:
        self.transport.abort()
        if self.worker is None:
            text = f"what connected to the trainer's socket sent {what}; its connection is closed"
            warnings.warn(text, stacklevel=2)
        else:
            self._engine.lose(self.worker, f"it sent {what}")

    def connection_lost(self, _: Exception | None) -> None:
        self._engine.open.discard(self)
        if self.worker is not None:
            self._engine.lose(self.worker, "connection lost")
        for future in self.waiting.values():
            future.set_exception(WorkerGoneError("connection lost"))
        self.waiting.clear()


class ChannelEngine:
    """A `distrlcc.actors.engine.Engine`; the trainer's side of the channel."""

    def __init__(self, spec: RankSpec, admission: Admission, most: int) -> None:
        """Listen, and tell admitted workers the address; frames have at most ``most`` bytes."""
        self.most = most
        self._members = admission.members
        self._missed = monotonic() + limits().join
        """When workers that have not connected are missed; infinite once they were named."""
        self._lock = threading.Lock()  # guards what follows
        self._links: dict[Worker, _Link] = {}
        self._changes = Changes()
        # Listen in a thread of its own, which also reads what comes.
        self._numbers = itertools.count(1)
        self._encoded: tuple[Any, bytes] = (None, b"")
        self.open = set[_Link]()  # all connections, which are of that thread alone
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="channel", daemon=True)
        self._thread.start()
        name, gateway, self._gate = f"distrlcc-{secrets.token_hex(16)}", "", None
        listen = self._loop.create_unix_server(lambda: _Link(self), f"\0{name}", backlog=512)
        self._server = asyncio.run_coroutine_threadsafe(listen, self._loop).result(limits().call)
        if spec.gate:
            self._gate = Gate(spec.gate)  # others reach it as long as this is open
            gateway = self._gate.register(name)
        admission.store.set(f"{spec.team}/channel", msgspec.json.encode((name, gateway)))

    def start(self, worker: Worker, factory: Callable[..., Any], *args: Any) -> Future[None]:
        """See `Engine`; the worker makes what it holds itself, with its own configuration."""
        return self.call(worker, "start", *args[1:])

    def call(self, worker: Worker, method: str, *args: Any) -> Future[Any]:
        """See `Engine`; a method is one of the four."""
        promise: Future[Any] = Future()
        # Weights are one object for all workers: it is encoded once.
        body = self._encoded[1]
        if method != "set_weights" or args[0] is not self._encoded[0]:
            body = _encode(_CALLS[method](*args))
        if method == "set_weights":
            self._encoded = args[0], body
        with self._lock:
            link = self._links.get(worker)
            if link is not None:
                number = next(self._numbers) % (1 << 32)
                link.waiting[number] = promise
                self._loop.call_soon_threadsafe(link.send, number, body)
        if link is None:
            promise.set_exception(WorkerGoneError("gone"))
        return promise

    def changes(self) -> Changes:
        """See `Engine`."""
        with self._lock:
            seen, self._changes = self._changes, Changes()
            if monotonic() > self._missed:
                self._missed = math.inf
                for worker in self._members.values():
                    warnings.warn(f"{worker} did not connect; going on without", stacklevel=2)
                self._members.clear()  # a worker that comes later is refused
        return seen

    def drop(self, worker: Worker, *, again: bool = True) -> None:
        """See `Engine`; none ever takes its place."""
        with self._lock:
            if (link := self._links.pop(worker, None)) is not None:
                self._loop.call_soon_threadsafe(link.transport.abort)

    def close(self) -> None:
        """See `Engine`."""
        with self._lock:
            self._links.clear()
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):  # a busy machine; the loop is stopped all the same
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(limits().kill)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(limits().kill)
        if not self._thread.is_alive():
            self._loop.close()
        if self._gate is not None:
            self._gate.close()

    async def _end(self) -> None:
        self._server.close()
        for link in list(self.open):
            link.transport.close()
        await asyncio.sleep(limits().tick)  # what was sent last is on its way
        for link in list(self.open):
            link.transport.abort()
        await asyncio.sleep(0)

    def admit(self, name: str, link: _Link) -> Worker:
        """Let the worker of this name join, once; raises KeyError if none of it is awaited."""
        with self._lock:
            worker = self._members.pop(name)
            self._links[worker] = link
            self._changes.joined.append(worker)
        return worker

    def lose(self, worker: Worker, reason: str) -> None:
        """Note that a worker left, if it is not known yet."""
        with self._lock:
            if self._links.pop(worker, None) is not None:
                self._changes.left[worker] = reason


# A worker's side


class _Channel:
    """A worker's connection to the trainer: reads calls, and answers each in a thread."""

    def __init__(self, connection: socket.socket, factory: Callable[..., Any], most: int) -> None:
        self._connection, self._factory, self._most = connection, factory, most
        self.holder, self._sending = Holder(), threading.Lock()
        self._calls = SimpleQueue[tuple[int, _Call]]()

    def send(self, number: int, message: Any) -> None:
        """Send a frame."""
        body = _encode(message)
        with self._sending:
            self._connection.sendall(_HEAD.pack(number, len(body)) + body)

    def begin(self) -> None:
        """Read and answer, in threads that end with this process."""
        for task in (self._read, *[self._work] * _THREADS):
            threading.Thread(target=task, daemon=True).start()

    def _read(self) -> None:
        """Read calls until the connection is lost; the silence that follows ends this worker."""
        stream = self._connection.makefile("rb")
        try:
            while len(head := stream.read(_HEAD.size)) == _HEAD.size:
                number, size = _HEAD.unpack(head)
                if size > self._most:
                    raise ValueError(f"a frame of {size} bytes")
                if len(frame := stream.read(size)) < size:
                    return
                self._calls.put((number, _call.decode(frame)))
        except OSError:
            return
        except (ValueError, RecursionError) as error:
            self.holder.problem = f"the trainer sent something else than expected ({error!s:.80})"

    def _work(self) -> None:
        with suppress(OSError):
            while True:
                number, call = self._calls.get()
                args = msgspec.structs.astuple(call)
                if isinstance(call, _Start):
                    failed, value = self.holder.start(self._factory, *args)
                else:
                    failed, value = self.holder.call(str(call.__struct_config__.tag), *args)
                self.send(number, _Answer(error=value or "failed") if failed else _Answer(value))


def hold_object(
    spec: RankSpec, admission: Admission, factory: Callable[..., Any], most: int
) -> int:
    """Hold as a worker what ``factory(index, first_step)`` makes, until it is stopped; return 0.

    Frames have ``most`` bytes. GroupError: the trainer is gone, silent, or breaks protocol.
    """
    (name,) = admission.members
    with _connect(spec, admission) as connection:
        channel = _Channel(connection, factory, most)
        try:
            channel.send(0, _Hello(name, _proof(name)))
        except OSError as error:
            raise GroupError(f"the trainer is gone ({error.strerror or error})") from None
        channel.begin()
        channel.holder.wait()
    return 0


def _connect(spec: RankSpec, admission: Admission) -> socket.socket:
    """Return a connection to the trainer; GroupError: out of reach, or another user's."""
    told = receive(admission.store, spec, f"{spec.team}/channel", extra=limits().join)
    name, gateway = decode(told, tuple[_Text, _Text], "the trainer")
    host, own = gateway.rpartition(":")[0], interface_towards(spec.address, spec.interface)
    try:
        if host and spec.gate and host != own.address:
            with Gate(spec.gate) as gate:
                port = gate.way(gateway, name)
            place = LOOPBACK, port
            connection = on_loopback(socket.create_connection, place, limits().call)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(limits().call)
            connection.connect(f"\0{name}")
            if not is_ours(connection):
                raise PermissionError("it is another user's")
    except OSError as error:
        raise GroupError(
            f"the trainer at {gateway or 'this machine'} cannot be reached "
            f"({error.strerror or error})"
        ) from None
    connection.settimeout(None)
    return connection
