"""A datagram socket that reads and writes many datagrams in one call, where the kernel can.

``UDP_SEGMENT`` (GSO) hands the kernel several datagrams of one size as one buffer, ``UDP_GRO``
gives several back as one. That saves system calls, the largest part of a datagram's cost. Both are
Linux's, and left out where they are missing. asyncio's timers would be a millisecond late.
"""

import errno
import re
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from distrlcc.errors import LinkError, reading
from distrlcc.limits import limits, look_up
from distrlcc.transport.handshake import Address

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_MOST_BYTES = 65_000
_MOST_SEGMENTS = 64  # the kernel's UDP_MAX_SEGMENTS of old; newer ones take 128
_BUFFER_BYTES = 4 << 20
_READS = 16  # reads in a row, so that what is due is not kept waiting by a flood
_PLACE = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
_NO_BATCHES = (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP)
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_INT = struct.Struct("i")
_SHORT = struct.Struct("H")


def not_opened(what: str, error: OSError) -> LinkError:
    """Return the error of a socket that the system does not open, with a remedy if it has one."""
    few = error.errno in (errno.EMFILE, errno.ENFILE)
    remedy = "; take fewer links, or raise ulimit -n" if few else ""
    return LinkError(f"cannot open {what} ({error.strerror}){remedy}")


def give_room(end: socket.socket, size: int) -> None:
    """Let a socket's buffers have a size, bytes, beyond the system's limit; root alone may."""
    for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, option, size)


class UdpSocket:
    """A nonblocking UDP socket; a context manager."""

    def __init__(self, *, bind: Address | None = None, connect: Address | None = None) -> None:
        """Open it, to listen at an address or to talk to one alone; raises LinkError."""
        # Large buffers; batches where the kernel has them.
        family = socket.AF_INET6 if ":" in (bind or connect or ("",))[0] else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise not_opened("a UDP socket", error) from None
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # TCP's would grow by themselves
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        give_room(self._socket, _BUFFER_BYTES)
        self.batches = False  # whether several datagrams leave in one call
        with suppress(OSError):
            self._socket.getsockopt(_SOL_UDP, _UDP_SEGMENT)
            self.batches = True
        with suppress(OSError):
            self._socket.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        # What went wrong with datagrams.
        self.refused = False  # whether the other end's port was closed when it was last heard of
        self.too_large = False  # whether a datagram did not fit onto the path
        self.unsent = 0  # datagrams that this machine had no room for
        # Take the address.
        try:
            if bind is not None:
                self._socket.bind(bind)
            if connect is not None:
                self._socket.connect(connect)
        except OSError as error:
            self._socket.close()
            at = bind or connect
            assert at is not None
            raise LinkError(
                f"cannot {'listen on' if bind else 'send to'} {at[0]}:{at[1]} ({error.strerror}); "
                "choose another address or port"
            ) from None

    def __enter__(self) -> "UdpSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def address(self) -> Address:
        """Own address and port."""
        name: Address = self._socket.getsockname()
        return name

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._socket.fileno()

    def wait(self, until: int) -> bool:
        """Wait until readable or a time, ns; say if readable. ``select`` is exact, epoll is not."""
        seconds = max(until - time.monotonic_ns(), 0) * 1e-9
        return bool(select.select([self._socket], [], [], seconds)[0])

    def receive(self, reads: int = _READS) -> list[tuple[bytes, Address]]:
        """Return the datagrams that have come, by at most so many reads, with their senders."""
        found: list[tuple[bytes, Address]] = []
        for _ in range(reads):
            try:
                data, control, _, address = self._socket.recvmsg(65_535, 32)
            except BlockingIOError:
                break
            except ConnectionRefusedError:
                self.refused = True
                continue
            except OSError:  # such as a network that is unreachable for a while
                break
            self.refused = False
            gro = [_INT.unpack(d)[0] for *kind, d in control if kind == [_SOL_UDP, _UDP_GRO]]
            size = gro[0] if gro else len(data) or 1
            found += ((data[k : k + size], address) for k in range(0, len(data) or 1, size))
        return found

    def send(self, datagrams: Sequence[bytes], address: Address | None = None) -> None:
        """Send datagrams; what the system has no room for is lost, as on any link."""
        place = 0
        while place < len(datagrams):
            place += self._send_some(datagrams, place, address)

    def _send_some(self, datagrams: Sequence[bytes], place: int, address: Address | None) -> int:
        """Send one or more datagrams from a place on; return how many."""
        size, count = len(datagrams[place]), 1
        if self.batches and size:
            most = min(len(datagrams) - place, _MOST_SEGMENTS, _MOST_BYTES // size)
            while count < most and len(datagrams[place + count]) == size:
                count += 1
        control = [(_SOL_UDP, _UDP_SEGMENT, _SHORT.pack(size))] if count > 1 else []
        parts = datagrams[place : place + count]
        try:
            self._socket.sendmsg(parts, control, 0, *(() if address is None else (address,)))
        except ConnectionRefusedError:  # of an earlier datagram; this one was not sent
            self.refused = True
            self.unsent += count
        except OSError as error:
            if count > 1 and error.errno in _NO_BATCHES:  # one by one from now on
                self.batches = False
                return 0
            self.too_large = self.too_large or error.errno == errno.EMSGSIZE
            self.unsent += count
        return count


def shown(address: Address) -> str:
    """Return an address as `resolve` takes it: ``HOST:PORT``, ``[HOST]:PORT`` for IPv6."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"


def resolve(
    text: str, what: str, default_port: int | None = None, seconds: float | None = None
) -> Address:
    """Return the address of a user's ``HOST:PORT``; a look-up has so many seconds, or `call`."""
    match = _PLACE.fullmatch(text)
    host, port = (match[1] or match[2], match[3]) if match else ("", None)
    number = int(port) if port else default_port
    if not host or host.isdecimal() or number is None or number > 65535:
        raise LinkError(f"{what} {text!r}: expected HOST:PORT, such as 10.0.0.1:4730 or [::1]:4730")
    with reading(LinkError, f"{what} {text!r}: {host} is unknown"):
        found = look_up(host, number, seconds or limits().call, type=socket.SOCK_DGRAM)
    # IPv4 first, as that is what a receiver listens on by default.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    address: Address = found[0][4]
    return address
